"""Weights in binary form: read by layer, written back, and files that are damaged or do not fit."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from purine import Run, backward, layout
from purine.data.messages import append, new_message
from purine.errors import ConfigError, FormatError, PurineError
from purine.importers.caffe import Imported, from_caffe
from purine.importers.caffe.weights import read_mean, read_weights
from purine.parallel import shard
from purine.runtime.compute import compute
from purine.solvers import sgd
from tests.importers.caffe_nets import INPUT, bring, layer
from tests.importers.mutations import SAMPLES

FC = "inner_product_param { num_output: 4 }"


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def write(
    path: Path,
    layers: dict[str, list[Tensor]],
    *,
    form: str = "today",
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Path:
    """A caffemodel in one of the three forms that Caffe has had."""
    net = new_message("NetParameter")
    net.name = b"small"
    for name, values in layers.items():
        entry = net.layer.add() if form == "today" else net.layers.add()
        if form == "first":
            entry = entry.layer
        entry.name = name.encode()
        for value in values:
            blob = entry.blobs.add()
            shape = (shapes or {}).get(name, tuple(value.shape))
            if form == "today":
                blob.shape.dim.extend(shape)
            else:
                sizes = (1,) * (4 - len(shape)) + shape
                blob.num, blob.channels, blob.height, blob.width = sizes
            append(blob.data, value.float().numpy())
    path.write_bytes(net.SerializeToString())
    return path


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.float().double())


@pytest.mark.parametrize("form", ["today", "older", "first"])
def test_convolutions_and_fully_connected_layers(tmp_path: Path, form: str) -> None:
    text = INPUT
    text += layer("Convolution", "convolution_param { num_output: 6 kernel_size: 3 group: 2 }")
    deconv = "convolution_param { num_output: 4 kernel_size: 2 group: 2 bias_term: false }"
    text += layer("Deconvolution", deconv, bottom="y", top="z", name="up")
    turned = "inner_product_param { num_output: 5 transpose: true }"
    text += layer("InnerProduct", turned, bottom="z", top="t", name="fc")
    given = {
        "op": [draw(6, 2, 3, 3), draw(6)],
        "up": [draw(6, 2, 2, 2)],
        "fc": [draw(4 * 6 * 5, 5), draw(5)],
    }
    path = write(tmp_path / "w.caffemodel", given, form=form)
    brought = bring(tmp_path, text, weights=path)
    assert brought.notes == ()
    close(brought.values["op/weight"], given["op"][0])
    close(brought.values["op/bias"], given["op"][1])
    close(brought.values["up/weight"], given["up"][0])
    close(brought.values["fc/weight"], given["fc"][0])
    assert set(brought.values) == set(brought.net.states)


def test_a_file_written_byte_by_byte(tmp_path: Path) -> None:
    """Field numbers are Caffe's: the bytes come from no message of ours."""

    def chunk(key: int, content: bytes) -> bytes:
        first = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
        return first + bytes([len(content)]) + content

    def blob(dims: bytes, *values: float) -> bytes:
        numbers = struct.pack(f"<{len(values)}f", *values)
        return chunk(7 << 3 | 2, chunk(7 << 3 | 2, chunk(1 << 3 | 2, dims)) + chunk(0x2A, numbers))

    entry = (
        chunk(0x0A, b"op") + chunk(0x12, b"InnerProduct") + chunk(0x1A, b"x") + chunk(0x22, b"y")
    )
    entry += blob(b"\x02\x03", 1, 2, 3, 4, 5, 6) + blob(b"\x02", 7, 8)
    path = tmp_path / "w.caffemodel"
    path.write_bytes(chunk(0x0A, b"by hand") + chunk(100 << 3 | 2, entry))
    text = 'input: "x" input_shape { dim: 2 dim: 3 }\n'
    text += layer("InnerProduct", "inner_product_param { num_output: 2 }")
    brought = bring(tmp_path, text, weights=path)
    assert brought.values["op/weight"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert brought.values["op/bias"].tolist() == [7, 8]


def test_batch_norm_has_sums_and_a_factor(tmp_path: Path) -> None:
    given = {"op": [draw(4), draw(4).abs(), torch.tensor([2.0])]}
    path = write(tmp_path / "w.caffemodel", given)
    text = INPUT + layer("BatchNorm", "batch_norm_param { use_global_stats: true }")
    brought = bring(tmp_path, text, weights=path)
    x = draw(3, 4, 7, 6)
    mean, variance = (value.float().double() / 2 for value in given["op"][:2])
    found = compute(brought.net, {"x": x}, states=brought.values)["y"]
    size = (1, 4, 1, 1)
    expected = (x - mean.reshape(size)) / (variance.reshape(size) + 1e-5).sqrt()
    torch.testing.assert_close(found, expected)


def test_shared_parameters_and_later_files(tmp_path: Path) -> None:
    shared = ' param { name: "w" } param { name: "b" }'
    text = 'input: "x" input_shape { dim: 3 dim: 4 }\n'
    text += layer("InnerProduct", FC + shared, name="fc1")
    text += layer("InnerProduct", FC + ' param { name: "w" }', bottom="y", top="z", name="fc2")
    first = write(tmp_path / "a", {"fc1": [draw(4, 4), draw(4)], "fc2": [draw(4, 4), draw(4)]})
    second = write(
        tmp_path / "b", {"fc1": [draw(4, 4, seed=1), draw(4, seed=1)], "other": [draw(1)]}
    )
    brought = bring(tmp_path, text, weights=[first, str(second)])
    close(brought.values["w"], draw(4, 4, seed=1))
    close(brought.values["b"], draw(4, seed=1))
    close(brought.values["fc2/bias"], draw(4))
    assert len(brought.notes) == 1
    assert str(second) in brought.notes[0]
    assert "other" in brought.notes[0]


def test_what_only_one_side_has_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "w.caffemodel", {"old": [draw(2)], "relu": []})
    brought = bring(tmp_path, INPUT + layer("InnerProduct", FC), weights=path)
    assert brought.values == {}
    assert ["layers old" in brought.notes[0], "layers op;" in brought.notes[1]] == [True, True]
    assert "relu" not in "".join(brought.notes)


@pytest.mark.parametrize(
    ("blobs", "expected", "found"),
    [
        ([draw(4, 167), draw(4)], "[4, 168]", "[4, 167]"),
        ([draw(168, 4), draw(4)], "[4, 168]", "[168, 4]"),
        ([draw(4, 168)], "2 blobs: [4, 168], [4]", "1 blobs: [4, 168]"),
        ([draw(4, 168), draw(1, 4)], "blob 1 of shape [4]", "[1, 4]"),
        ([], "2 blobs", "0 blobs"),
    ],
)
def test_sizes_that_do_not_fit(
    tmp_path: Path, blobs: list[Tensor], expected: str, found: str
) -> None:
    path = write(tmp_path / "w.caffemodel", {"op": blobs})
    with pytest.raises(FormatError, match="'op'") as caught:
        bring(tmp_path, INPUT + layer("InnerProduct", FC), weights=path)
    assert caught.value.where == str(path)
    assert expected in str(caught.value.expected)
    assert found in str(caught.value.found)


def test_fewer_values_than_the_shape_says(tmp_path: Path) -> None:
    given = {"op": [draw(4, 2), draw(4)]}
    path = write(tmp_path / "w.caffemodel", given, shapes={"op": (4, 168)})
    with pytest.raises(FormatError, match="'op'") as caught:
        bring(tmp_path, INPUT + layer("InnerProduct", FC), weights=path)
    assert (caught.value.found, "672 values" in str(caught.value.expected)) == ("8 values", True)


def lenet() -> Imported:
    return from_caffe(SAMPLES / "lenet_train_test.prototxt", image=(1, 28, 28), batch=2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_go_back_to_caffe(tmp_path: Path, dtype: str) -> None:
    text = INPUT + layer("BatchNorm", top="n", name="norm")
    text += layer("InnerProduct", FC, bottom="n")
    text += layer("EuclideanLoss", bottom="y t", top="loss", name="loss")
    text = text.replace("\n", '\ninput: "t" input_shape { dim: 3 dim: 4 }\n', 1)
    brought = bring(tmp_path, text, dtype=dtype)
    step = sgd(backward(brought.net), lr=0.1)
    path = tmp_path / "trained.caffemodel"
    with Run(layout(step, "channels-last")) as run:
        brought.to_caffe(run, path)
        states = run.states()
    again = bring(tmp_path, text, dtype=dtype, weights=path)
    assert again.notes == ()
    assert set(again.values) == {name for name in brought.net.states if "/" in name}
    for name, value in again.values.items():
        assert torch.equal(value, states[name])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["net.prototxt", path.name]


def test_weights_in_shards_go_back_whole(tmp_path: Path) -> None:
    text = INPUT + layer("InnerProduct", FC)
    brought = bring(tmp_path, text, dtype="float32")
    net = shard(brought.net, "cpu:0-1")
    path = tmp_path / "trained.caffemodel"
    values = {slot.state: torch.rand(slot.shape) for item in brought.layers for slot in item.slots}
    assert not values.keys() <= net.states.keys()
    with Run(net, threads=1, share_cores=True) as run:
        run.set_states(values)
        brought.to_caffe(run, path)
    again = bring(tmp_path, text, dtype="float32", weights=path).values
    assert again.keys() == values.keys()
    assert all(torch.equal(again[name], value) for name, value in values.items())


def test_writing_that_fails_leaves_nothing(tmp_path: Path) -> None:
    brought = lenet()

    class Fixed:
        graph = brought.net

        def __init__(self, values: dict[str, Tensor]) -> None:
            self.values = values

        def states(self) -> dict[str, Tensor]:
            return self.values

    with pytest.raises(ConfigError, match="no weights for layer 'conv1'"):
        brought.to_caffe(Fixed({}), tmp_path / "w.caffemodel")
    zeros = {slot.state: torch.zeros(slot.shape) for item in brought.layers for slot in item.slots}
    with pytest.raises(ConfigError, match="cannot write"):
        brought.to_caffe(Fixed(zeros), tmp_path / "none" / "w.caffemodel")
    assert list(tmp_path.iterdir()) == []


def test_files_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    text = (SAMPLES / "lenet_solver.prototxt").read_bytes()
    for data in (b"", text, b"\x89HDF\r\n\x1a\n" + bytes(40), b"\x0a\x05lenet"):
        path.write_bytes(data)
        with pytest.raises(FormatError) as caught:
            bring(tmp_path, INPUT + layer("InnerProduct", FC), weights=path)
        assert caught.value.where == str(path)
    with pytest.raises(FormatError, match="cannot read the file"):
        bring(tmp_path, INPUT + layer("InnerProduct", FC), weights=tmp_path / "none")


def test_damaged_files_give_our_error_or_a_result(tmp_path: Path) -> None:
    text = INPUT + layer("InnerProduct", FC)
    text += layer("InnerProduct", FC, bottom="y", top="z", name="fc2")
    given = {"op": [draw(4, 168), draw(4)], "fc2": [draw(4, 4), draw(4)]}
    brought = bring(tmp_path, text)
    shapes = {name: brought.net.blobs[name].shape or () for name in brought.net.states}
    wholes = [write(tmp_path / form, given, form=form).read_bytes() for form in ("today", "older")]
    path = tmp_path / "mutated.caffemodel"
    told = []
    for seed in range(1000):
        path.write_bytes(mutated(wholes[seed % 2], seed))
        try:
            values, _ = read_weights([path], brought.layers, shapes)
        except FormatError as error:
            told.append(error.where)
        else:
            assert all(value.shape == shapes[name] for name, value in values.items())
    assert len(told) > 300
    assert set(told) == {str(path)}


def mutated(data: bytes, seed: int) -> bytes:
    """A file cut short, or with bytes changed, lost or put in; mostly near its structure."""
    generator = random.Random(seed)
    if generator.random() < 0.3:
        return data[: generator.randrange(len(data))]
    made = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        near = data.find(generator.choice([b"op", b"fc2", b"\x2a", b"\x3a"]))
        at = (near + generator.randint(-6, 12)) % len(made)
        if generator.random() < 0.3:
            at = generator.randrange(len(made))
        change = generator.randrange(3)
        if change == 0:
            made[at] = generator.randrange(256)
        elif change == 1:
            del made[at : at + generator.randint(1, 9)]
        else:
            made[at:at] = generator.randbytes(generator.randint(1, 5))
    return bytes(made)


def test_mean_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "mean.binaryproto"
    blob = new_message("BlobProto")
    blob.num, blob.channels, blob.height, blob.width = 1, 1, 2, 2
    blob.data.extend([1, 2, 3, 4])
    whole = blob.SerializeToString()
    path.write_bytes(whole)
    assert read_mean(path).tolist() == [[[1, 2], [3, 4]]]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(PurineError) as caught:
            read_mean(path)
        assert caught.value.where == str(path)
