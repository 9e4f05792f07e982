import pytest

from purine.errors import GraphError
from purine.graph import Blob, Filler, Location, Op


def test_a_location_prints_and_sorts() -> None:
    assert str(Location("10.0.0.2", "cuda:1")) == "host 10.0.0.2, cuda:1"
    assert sorted([Location(device="cuda:0"), Location()]) == [
        Location(),
        Location(device="cuda:0"),
    ]


@pytest.mark.parametrize("device", ["gpu:0", "cpu", "cpu:-1", "cpu:01", "cuda:x", "", "cpu:0\n"])
def test_a_wrong_device_is_refused(device: str) -> None:
    with pytest.raises(GraphError, match="is not a device") as caught:
        Location(device=device)
    assert caught.value.found == repr(device)
    assert caught.value.remedy == "write for example cpu:0"


@pytest.mark.parametrize(
    "lane", ["compute", "compute:1", "compute:12", "inbound", "outbound", "io"]
)
def test_lanes(lane: str) -> None:
    assert Op("a", "Relu", (), (), lane=lane).lane == lane


@pytest.mark.parametrize("lane", ["", "compute:0", "compute:x", "gpu"])
def test_a_wrong_lane_is_refused(lane: str) -> None:
    with pytest.raises(GraphError, match=r"net.yaml:3: op 'a' is on lane") as caught:
        Op("a", "Relu", (), (), lane=lane, where="net.yaml:3")
    assert caught.value.op == "a"


def test_attributes_are_frozen_copies() -> None:
    pads = [1, [2, 3]]
    op = Op("a", "Conv", (), (), {"pad": pads})  # type: ignore[dict-item]
    pads.append(4)
    assert op.attributes == {"pad": (1, (2, 3))}
    assert Filler("xavier", {"sizes": [1, 2]}).attributes == {"sizes": (1, 2)}  # type: ignore[dict-item]


def test_an_attribute_holds_plain_values_only() -> None:
    with pytest.raises(GraphError, match="cannot hold an object"):
        Op("a", "Conv", (), (), {"pad": object()})  # type: ignore[dict-item]


def test_where_takes_no_part_in_equality() -> None:
    assert Blob("x", (2,), where="a:1") == Blob("x", (2,), where="b:7")
    assert Op("a", "Relu", (), (), where="a:1") == Op("a", "Relu", (), (), where="b:7")
    assert hash(Blob("x", (2,), where="a:1")) == hash(Blob("x", (2,), where="b:7"))


@pytest.mark.parametrize(
    ("shape", "text"),
    [((2, 3), "x: float32 2x3"), ((), "x: float32 scalar"), (None, "x: float32 ?")],
)
def test_a_blob_prints(shape: tuple[int, ...] | None, text: str) -> None:
    assert str(Blob("x", shape)) == text
