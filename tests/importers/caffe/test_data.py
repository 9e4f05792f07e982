"""What a definition names beside itself: databases, lists, mean images."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from purine import Run, backward
from purine.analysis.infer import check
from purine.data import ArraySource, DataSet
from purine.data.messages import append, new_message
from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError, DataError, FormatError, PurineError
from purine.importers.caffe import from_caffe
from purine.solvers import sgd
from tests.data.caffe_files import datum, picture, write_lmdb
from tests.importers.caffe_nets import bring, layer

IMAGES = np.random.default_rng(1).integers(0, 256, (8, 3, 6, 6), np.uint8)
LABELS = np.arange(8) % 4
NET = layer("InnerProduct", "inner_product_param { num_output: 4 }", bottom="data", name="fc")
NET += layer("SoftmaxWithLoss", bottom="y label", top="loss", name="loss")


def data_layer(source: str, phase: str, more: str = "", *, transform: str = "") -> str:
    settings = f'data_param {{ source: "{source}" batch_size: 4 backend: LMDB {more} }}'
    rest = f"{settings} transform_param {{ {transform} }} include {{ phase: {phase} }}"
    return layer("Data", rest, bottom="", top="data label", name=f"{phase.lower()}_data")


def write_database(path: Path, count: int = 8) -> None:
    pairs = zip(IMAGES[:count], LABELS.tolist(), strict=False)
    write_lmdb(path, [datum(image, label) for image, label in pairs])


def write_mean(path: Path) -> torch.Tensor:
    mean = IMAGES.mean(0).astype(np.float32)
    blob = new_message("BlobProto")
    blob.num, blob.channels, blob.height, blob.width = 1, *mean.shape
    append(blob.data, mean)
    path.write_bytes(blob.SerializeToString())
    return torch.from_numpy(mean)


def test_an_lmdb_with_a_mean_image_from_definition_to_training(tmp_path: Path) -> None:
    write_database(tmp_path / "train_lmdb")
    write_database(tmp_path / "test_lmdb", 6)
    mean = write_mean(tmp_path / "mean.binaryproto")
    transform = 'mean_file: "mean.binaryproto" scale: 0.01 crop_size: 4 mirror: true'
    text = data_layer("train_lmdb", "TRAIN", transform=transform)
    text += data_layer("test_lmdb", "TEST", transform=transform) + NET
    brought = bring(tmp_path, text, dtype="float32")
    assert brought.notes == ()
    assert brought.net.blobs["data"].shape == (4, 3, 4, 4)
    assert torch.equal(brought.transform.settings()["mean"], mean)
    data = brought.data()
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (8, 6)
    ready = brought.prepared(data)
    assert torch.equal(ready.values[MEAN_IMAGE], mean)
    with Run(check(sgd(backward(ready.net), lr=0.1)), data=data, threads=1) as run:
        run.set_states(ready.values)
        losses = [result.loss for result in run.steps(40)]
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        assert ready.test is not None
        measured = run.evaluate(ready.test)["loss"]
        states = run.states()
    middle = (torch.from_numpy(IMAGES[:6]).float() - mean)[:, :, 1:5, 1:5] * 0.01
    scores = middle.flatten(1) @ states["fc/weight"].T + states["fc/bias"]
    expected = torch.nn.functional.cross_entropy(scores, torch.from_numpy(LABELS[:6]))
    assert measured == pytest.approx(float(expected), rel=1e-5)


def test_a_root_for_the_import_and_for_the_data(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    write_database(tmp_path / "db")
    text = data_layer("db", "TRAIN") + NET
    with pytest.raises(ConfigError, match="the source 'db' of layer"):
        bring(tmp_path / "text", text)
    assert len(bring(tmp_path / "text", text, root=tmp_path).data().train) == 8
    brought = bring(tmp_path / "text", text, image=(3, 6, 6))
    with pytest.raises(DataError, match="is not there") as caught:
        brought.data()
    assert "root=" in str(caught.value.remedy)
    data = brought.data(tmp_path)
    assert (len(data.train), data.test) == (8, None)


def apart(error: PurineError, *, python: list[str], command: list[str]) -> None:
    """Advice for Python comes before advice for the command line, each under its name."""
    first, found, second = str(error.remedy).partition("; on the command line ")
    assert found
    assert first.startswith("in Python ")
    assert "--" not in first
    assert all(word in first for word in python)
    assert "=" not in second
    assert all(word in second for word in command)


def test_folders_that_were_searched_are_named_once_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = data_layer("db", "TRAIN") + NET
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as unsized:
        bring(tmp_path, text)
    assert unsized.value.expected == f"it in {tmp_path}"
    apart(unsized.value, python=["image=(3, 32, 32)", "root="], command=["--image", "--data"])
    with pytest.raises(DataError) as unread:
        bring(tmp_path, text, image=(3, 6, 6)).data()
    assert unread.value.expected == f"'db' in {tmp_path}"
    apart(unread.value, python=["root="], command=["--data"])
    (tmp_path / "below").mkdir()
    with pytest.raises(ConfigError) as unsized:
        bring(tmp_path / "below", text)
    assert unsized.value.expected == f"it in one of {tmp_path}, {tmp_path / 'below'}"


def test_a_source_without_labels(tmp_path: Path) -> None:
    write_database(tmp_path / "db")
    text = layer(
        "Data", 'data_param { source: "db" batch_size: 2 }', bottom="", top="data", name="data"
    )
    data = bring(tmp_path, text + layer("ReLU", bottom="data")).data()
    assert [field.name for field in data.train.fields] == ["image"]


def test_leveldb_needs_a_size_and_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "CURRENT").write_text("MANIFEST-000001\n")
    text = data_layer("db", "TRAIN").replace("backend: LMDB", "backend: LEVELDB") + NET
    with pytest.raises(ConfigError, match="the size of 'data'"):
        bring(tmp_path, text)
    with pytest.raises(DataError, match="LevelDB") as caught:
        bring(tmp_path, text, image=(3, 6, 6)).data()
    assert "convert_imageset" in str(caught.value.remedy)


def test_hdf5_lists_give_sizes_and_rows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = IMAGES.astype(np.float64).reshape(8, -1)
        file["label"] = LABELS.astype(np.float32)[:, None]
    (tmp_path / "list.txt").write_text("a.h5\n")
    settings = 'hdf5_data_param { source: "list.txt" batch_size: 4 }'
    text = layer("HDF5Data", settings, bottom="", top="label data", name="rows") + NET
    brought = bring(tmp_path, text, dtype="float32")
    assert brought.net.blobs["data"].shape == (4, 108)
    assert brought.net.blobs["label"].shape == (4, 1)
    data = brought.data()
    with Run(brought.net, data=data) as run:
        assert len(list(run.steps(2))) == 2
    label, rows = data.train.batch(np.array([5]))
    assert (label.dtype, rows.dtype) == (torch.int64, torch.float32)
    assert label.tolist() == [[1]]


@pytest.mark.parametrize("root", ["", "pictures/"])
def test_lists_of_pictures(tmp_path: Path, root: str) -> None:
    folder = tmp_path / root
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(IMAGES):
        (folder / f"{number}.png").write_bytes(picture(np.moveaxis(image, 0, 2)))
    lines = (f"{number}.png {label}\n" for number, label in enumerate(LABELS))
    (tmp_path / "list.txt").write_text("".join(lines))
    settings = f'source: "list.txt" batch_size: 4 root_folder: "{root}"'
    for more, size in (("", 6), (" new_height: 3 new_width: 3", 3)):
        rest = f"image_data_param {{ {settings}{more} }}"
        text = layer("ImageData", rest, bottom="", top="data label", name="images") + NET
        brought = bring(tmp_path, text, dtype="float32")
        assert brought.net.blobs["data"].shape == (4, 3, size, size)
        for data in (brought.data(), brought.data(tmp_path)):
            image, label = data.train.batch(np.array([7]))
            assert label.tolist() == [3]
            if size == 6:
                assert image[0].tolist() == IMAGES[7, ::-1].tolist()


def test_memory_data_is_left_to_the_user(tmp_path: Path) -> None:
    settings = "memory_data_param { batch_size: 4 channels: 3 height: 6 width: 6 }"
    text = layer("MemoryData", settings, bottom="", top="data label", name="memory") + NET
    brought = bring(tmp_path, text, dtype="float32")
    with pytest.raises(DataError, match="names no source") as caught:
        brought.data()
    assert "ArraySource" in str(caught.value.remedy)
    data = DataSet("arrays", ArraySource(IMAGES, LABELS))
    with Run(brought.prepared(data).net, data=data) as run:
        assert len(list(run.steps(1))) == 1


def test_two_sources_or_none_are_no_data_set(tmp_path: Path) -> None:
    text = data_layer("a", "TRAIN")
    text += text.replace("train_data", "more").replace('"data"', '"d"').replace('"label"', '"l"')
    with pytest.raises(DataError, match="reads from 2 sources"):
        bring(tmp_path, text + NET, image=(3, 6, 6)).data()
    text = 'input: "x" input_shape { dim: 2 }\n' + layer("ReLU")
    with pytest.raises(DataError, match="reads from 0 sources"):
        bring(tmp_path, text).data()


def test_mean_files_and_values(tmp_path: Path) -> None:
    write_database(tmp_path / "db")
    file = 'mean_file: "mean.binaryproto"'
    with pytest.raises(FormatError, match="mean_file and mean_value"):
        bring(tmp_path, data_layer("db", "TRAIN", transform=file + " mean_value: 3") + NET)
    (tmp_path / "mean.binaryproto").write_bytes(b"\x2a\x7f\x00")
    with pytest.raises(FormatError, match="damaged") as caught:
        bring(tmp_path, data_layer("db", "TRAIN", transform=file) + NET)
    assert str(caught.value.where).endswith("mean.binaryproto")
    (tmp_path / "mean.binaryproto").unlink()
    (note,) = bring(tmp_path, data_layer("db", "TRAIN", transform=file) + NET).notes
    assert "no such file" in note


def test_another_transform_at_test_time_is_noted(tmp_path: Path) -> None:
    text = data_layer("a", "TRAIN", transform="scale: 0.5 mirror: true")
    text += data_layer("b", "TEST", transform="scale: 2") + NET
    (note,) = bring(tmp_path, text, image=(3, 6, 6)).notes
    assert "scale 2.0" in note
    write_mean(tmp_path / "mean.binaryproto")
    text = data_layer("a", "TRAIN", transform='mean_file: "mean.binaryproto"')
    text += data_layer("b", "TEST") + NET
    (note,) = bring(tmp_path, text, image=(3, 6, 6)).notes
    assert "another mean image" in note


def test_a_damaged_database_is_told_at_the_import(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "data.mdb").write_bytes(bytes(9000))
    path = tmp_path / "net.prototxt"
    path.write_text(data_layer("db", "TRAIN") + NET)
    with pytest.raises(DataError, match="cannot be read"):
        from_caffe(path)
    assert from_caffe(path, image=(3, 6, 6)).net.blobs["data"].shape == (4, 3, 6, 6)
