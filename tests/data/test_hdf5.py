from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from purine.data import Hdf5Source, open_data
from purine.data.hdf5 import with_classes
from purine.errors import DataError
from tests.command import call

ROWS = np.arange(10 * 3, dtype=np.float32).reshape(10, 3)


def write(path: Path, **columns: object) -> Path:
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
    return path


def listed(folder: Path) -> Path:
    """A list of two files: four rows, then six."""
    for name, part in (("a.h5", slice(0, 4)), ("b.h5", slice(4, 10))):
        write(folder / name, data=ROWS[part], label=np.arange(10.0)[part])
    path = folder / "list.txt"
    path.write_text("a.h5\n\nb.h5\n")
    return path


def test_rows_over_files_in_any_order(tmp_path: Path) -> None:
    source = Hdf5Source(listed(tmp_path), names=("label", "data"), dtypes={"label": "int64"})
    assert len(source) == 10
    assert list(map(str, source.fields)) == ["label: int64 scalar", "data: float32 3"]
    wanted = np.array([9, 3, 4, 3, 0])
    label, data = source.batch(wanted)
    assert label.tolist() == wanted.tolist()
    assert data.numpy().tolist() == ROWS[wanted].tolist()


def test_by_name(tmp_path: Path) -> None:
    path = listed(tmp_path)
    data = open_data(f"hdf5:{path},{tmp_path / 'b.h5'}")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (10, 6)
    assert [field.name for field in data.train.fields] == ["data", "label"]


def test_a_root_comes_before_other_places(tmp_path: Path) -> None:
    path = listed(tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    for name in ("a.h5", "b.h5"):
        write(root / name, data=ROWS)
    assert len(Hdf5Source(path, names=["data"], root=root)) == 20


def test_labels_that_are_not_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", label=np.array([0.0, 1.5]))
    with pytest.raises(DataError, match="not whole numbers") as caught:
        Hdf5Source(path, dtypes={"label": "int64"}).batch(np.arange(2))
    assert caught.value.found == "1.5"


def test_wrong_files(tmp_path: Path) -> None:
    path = listed(tmp_path)
    with pytest.raises(DataError, match="no data set 'image'"):
        Hdf5Source(path, names=["image"])
    write(tmp_path / "b.h5", data=ROWS[:, :2], label=np.arange(10.0))
    with pytest.raises(DataError, match="differ in form"):
        Hdf5Source(path)
    write(tmp_path / "b.h5", data=ROWS, label=np.arange(9.0))
    with pytest.raises(DataError, match="numbers of rows") as caught:
        Hdf5Source(path)
    assert caught.value.where == str(tmp_path / "b.h5")
    write(tmp_path / "b.h5", data=np.array([b"text"]), label=np.arange(1.0))
    with pytest.raises(DataError, match="cannot be bytes"):
        Hdf5Source(tmp_path / "b.h5")
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        Hdf5Source(path)
    for text in ("", "none.h5\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="cannot be read"):
            Hdf5Source(path)
    with pytest.raises(DataError, match="cannot be read"):
        Hdf5Source(tmp_path / "none.txt")


def test_a_net_of_the_zoo_trains_on_images_and_labels(tmp_path: Path) -> None:
    images = np.zeros((12, 1, 8, 8), np.float32)
    for name in ("train.h5", "test.h5"):
        write(tmp_path / name, data=images, label=np.arange(12.0).reshape(12, 1) % 4)
    spec = f"hdf5:{tmp_path / 'train.h5'},{tmp_path / 'test.h5'}"
    data = with_classes(open_data(spec))
    assert list(map(str, data.train.fields)) == ["data: float32 1x8x8", "label: int64 scalar"]
    assert data.train.classes == 4
    assert data.train.batch(np.array([7, 2]))[1].tolist() == [3, 2]
    out = tmp_path / "out"
    words = ("--net", "mlp", "--data", spec, "--batch", "4", "--iters", "2")
    called = call("train", *words, "--out", out)
    assert called.code == 0, called.err
    assert "on 12 samples" in call("test", out).out


def test_data_without_labels_stays_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", data=ROWS, label=np.arange(10.0))
    data = open_data(f"hdf5:{tmp_path / 'a.h5'}")
    assert with_classes(data) is data
    synthetic = open_data("synthetic:image=1x8x8,classes=2,count=4")
    assert with_classes(synthetic) is synthetic
