from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from purine.data import open_data
from purine.errors import DataError

IMAGES = np.zeros((4, 3, 3), np.uint8)
LABELS = np.array([0, 1, 1, 2], np.uint8)


def write_idx(folder: Path) -> None:
    sizes = [size.to_bytes(4, "big") for size in IMAGES.shape]
    images = b"\0\0\x08\x03" + b"".join(sizes) + IMAGES.tobytes()
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + sizes[0] + LABELS.tobytes())


def test_embedded() -> None:
    assert len(open_data("fashion-mini").train) == 6000


def test_synthetic_with_options() -> None:
    data = open_data("synthetic:image=3x8x6,classes=5,count=50,seed=3,dtype=uint8")
    assert data.train.fields[0].shape == (3, 8, 6)
    assert data.train.fields[0].dtype == "uint8"
    assert data.train.classes == 5
    assert len(data.train) == 50
    assert data.test is not None
    assert len(data.test) == 5


def test_synthetic_masks() -> None:
    data = open_data("synthetic-masks:image=3x8x6,classes=5,count=50")
    assert [field.shape for field in data.train.fields] == [(3, 8, 6), (8, 6)]
    assert (data.train.classes, len(data.train)) == (5, 50)


def test_synthetic_tokens() -> None:
    data = open_data("synthetic-tokens:length=12,vocabulary=30")
    assert data.train.fields[0].shape == (12,)
    assert data.train.classes == 30
    assert len(data.train) == 1280


def test_folder_of_idx_files(tmp_path: Path) -> None:
    write_idx(tmp_path)
    assert len(open_data(str(tmp_path)).train) == 4


def test_folder_of_npy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "train_images.npy", IMAGES)
    np.save(tmp_path / "train_labels.npy", LABELS)
    assert len(open_data(str(tmp_path)).train) == 4


def test_npz_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    assert len(open_data(str(tmp_path / "a.npz")).train) == 4
    monkeypatch.chdir(tmp_path)
    assert len(open_data("a.npz").train) == 4


def test_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(DataError, match="no data set 'fashon-mini'") as caught:
        open_data("fashon-mini")
    for known in ("fashion-mini", "synthetic", "synthetic-tokens", "IDX", ".npy", ".npz"):
        assert known in str(caught.value.expected)
    assert caught.value.remedy == "did you mean 'fashion-mini'?"


@pytest.mark.parametrize("path", ["/no/such/folder", "no/such", "data.npz", "./data", "folder/"])
def test_path_that_does_not_exist(path: str) -> None:
    with pytest.raises(DataError, match="no such file or folder") as caught:
        open_data(path)
    assert caught.value.where == path


def test_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set") as caught:
        open_data(str(tmp_path))
    assert caught.value.found == "an empty folder"
    np.savez(tmp_path / "a.npz", images=IMAGES)
    with pytest.raises(DataError, match="no data set") as caught:
        open_data(str(tmp_path))
    assert caught.value.remedy == f"name the file: {tmp_path / 'a.npz'}"


@pytest.mark.parametrize(
    ("name", "remedy"), [("a.npy", "name the folder"), ("a.csv", "convert it to .npz")]
)
def test_file_of_another_type(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match="no data set") as caught:
        open_data(str(tmp_path / name))
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("spec", "what", "expected"),
    [
        ("synthetic:clases=3", "no option 'clases'", "image, classes, count, seed, dtype"),
        ("synthetic:", "no option ''", "image, classes"),
        ("fashion-mini:count=3", "no option 'count'", "no options"),
        ("synthetic:classes=three", "option 'classes' cannot be read", "a whole number"),
        ("synthetic:image=28x28", "option 'image' cannot be read", "CxHxW"),
        ("synthetic:count=1,count=2", "'count' is given twice", "every option once"),
        ("synthetic:count=0", "count is 0", "1 or more"),
    ],
)
def test_wrong_options(spec: str, what: str, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        open_data(spec)
    assert what in caught.value.what
    assert expected in str(caught.value.expected)
