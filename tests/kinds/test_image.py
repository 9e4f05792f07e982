from __future__ import annotations

import pytest
import torch

from purine.analysis.infer import check
from purine.autodiff import backward
from purine.errors import KindError
from purine.kinds import Net, center_crop, crop, mirror, normalize
from purine.kinds.image import CenterCrop, Crop, Mirror, Normalize
from purine.registry.lookup import kinds
from tests.reference import following, run, start

SEED, ITERATION = torch.tensor(3), torch.tensor(5)
IMAGES = torch.arange(64 * 2 * 6 * 5).reshape(64, 2, 6, 5)


def test_normalize_shifts_scales_and_casts() -> None:
    x = torch.tensor([[[[0]], [[255]]]], dtype=torch.uint8)
    assert Normalize(x, mean=127.5, scale=1 / 127.5).flatten().tolist() == [-1.0, 1.0]
    assert Normalize(x, mean=(1.0, 5.0)).flatten().tolist() == [-1.0, 250.0]
    assert Normalize(x, dtype="float64").dtype == torch.float64


def test_a_crop_is_a_window_of_its_image() -> None:
    found = Crop(IMAGES, SEED, ITERATION, size=(4, 3), stream="a")
    assert found.shape == (64, 2, 4, 3)
    places = set()
    for image, part in zip(IMAGES, found, strict=True):
        place = int(part[0, 0, 0] - image[0, 0, 0])
        top, left = divmod(place, 5)
        assert torch.equal(part, image[:, top : top + 4, left : left + 3])
        places.add((top, left))
    assert places == {(top, left) for top in range(3) for left in range(3)}


def test_a_padded_crop_has_zeros_at_the_edge() -> None:
    x = torch.ones(64, 1, 4, 4, dtype=torch.uint8)
    found = Crop(x, SEED, ITERATION, size=4, pad=2, stream="a")
    counts = found.sum((1, 2, 3)).unique().tolist()
    assert found.dtype == torch.uint8
    assert min(counts) == 4
    assert max(counts) == 16


def test_mirror_turns_about_half_of_the_images() -> None:
    found = Mirror(IMAGES, SEED, ITERATION, stream="a")
    turned = [torch.equal(part, image.flip(-1)) for part, image in zip(found, IMAGES, strict=True)]
    kept = [torch.equal(part, image) for part, image in zip(found, IMAGES, strict=True)]
    assert [not item for item in kept] == turned
    assert 16 < sum(turned) < 48


@pytest.mark.parametrize("offset", [0, 1, 17])
def test_a_part_of_a_batch_is_treated_as_in_the_whole(offset: int) -> None:
    cropped = Crop(IMAGES, SEED, ITERATION, size=3, stream="a")
    part = Crop(IMAGES[offset:], SEED, ITERATION, size=3, stream="a", offset=offset)
    assert torch.equal(cropped[offset:], part)
    mirrored = Mirror(IMAGES, SEED, ITERATION, stream="a")
    part = Mirror(IMAGES[offset:], SEED, ITERATION, stream="a", offset=offset)
    assert torch.equal(mirrored[offset:], part)


def test_the_middle_is_what_a_crop_gives_at_test_time() -> None:
    assert kinds()["Crop"].evaluation == "CenterCrop"
    assert kinds()["Mirror"].evaluation == "pass"
    assert set(kinds()["CenterCrop"].attributes) == set(kinds()["Crop"].attributes)
    found = CenterCrop(IMAGES, size=(4, 3), stream="a", offset=3)
    assert torch.equal(found, IMAGES[:, :, 1:5, 1:4])
    assert torch.equal(CenterCrop(IMAGES, size=(8, 7), pad=1)[:, :, 1:7, 1:6], IMAGES)


def test_layers_draw_anew_in_every_iteration() -> None:
    net = Net()
    x = net.input("x", IMAGES.shape, "int64")
    normalize(mirror(crop(x, size=4, pad=1, name="crop"), name="mirror"), mean=[1, 2], name="y")
    graph = check(net.graph())
    assert graph.ops["crop"].attributes["stream"] == "crop"
    assert graph.blobs["y"].shape == (64, 2, 4, 4)
    assert graph.blobs["y"].dtype == "float32"
    first = run(graph, {"x": IMAGES}, start(graph, seed=1))
    second = run(graph, {"x": IMAGES}, following(graph, first))
    again = run(graph, {"x": IMAGES}, start(graph, seed=1))
    assert torch.equal(first["y"], again["y"])
    assert not torch.equal(first["y"], second["y"])


def test_normalize_takes_the_dtype_of_the_net() -> None:
    x = Net(dtype="float64").input("x", (2, 1, 4, 4), "uint8")
    assert normalize(x).blob.dtype == "float64"


def test_the_gradient_of_a_crop_lies_where_it_was_cut() -> None:
    net = Net()
    y = crop(net.input("x", (4, 1, 5, 5)), size=2, pad=1)
    net.apply("aten.sum", [y], name="loss")
    graph = backward(net.graph(), losses={"loss": 1.0}, wrt=["x"])
    value = torch.rand(4, 1, 5, 5) + 1
    values = run(graph, {"x": value})
    assert values["grad/x"].shape == value.shape
    torch.testing.assert_close((values["grad/x"] * value).sum(), values["loss"])


def test_mistakes() -> None:
    x = Net().input("x", (2, 3, 6, 5))
    with pytest.raises(KindError, match="7 x 7 cannot be cut from 6 x 5 with pad 0"):
        crop(x, size=7)
    with pytest.raises(KindError, match="6 x 6 cannot be cut"):
        center_crop(x, size=6)
    with pytest.raises(KindError, match="pad is -1"):
        crop(x, size=2, pad=-1)
    with pytest.raises(KindError, match="2 means for x of shape"):
        normalize(x, mean=(1.0, 2.0))
    with pytest.raises(KindError, match="dtype to be one of float16"):
        x.net.apply("Normalize", [x], {"dtype": "int64"})
