"""Sources by a text with options, which opens them again as they were."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from purine.data import open_data
from purine.data.open import absolute
from purine.data.stored import Stored, parse_stored
from purine.errors import DataError
from purine.importers.caffe import Imported
from tests.data.caffe_files import picture
from tests.importers.caffe_nets import bring, layer


@pytest.mark.parametrize(
    "stored",
    [
        Stored("lmdb", Path("/data/a b")),
        Stored("lmdb", Path("/data/a?b"), {"color": True, "labels": False}),
        Stored("hdf5", Path("/list.txt"), {"names": ("a", "b"), "dtypes": ("int64", "float32")}),
        Stored("image-list", Path("/list.txt"), {"size": (3, 4), "root": "/a,b&c?d=%/e_"}),
    ],
)
def test_texts_read_back(stored: Stored) -> None:
    text = str(stored)
    assert "," not in text
    assert parse_stored(stored.kind, text) == stored
    assert parse_stored(stored.kind, str(stored.absolute())) == stored


def test_absolute_paths_reach_into_options() -> None:
    here = Path.cwd()
    found = absolute("image-list:a.txt?root=pictures/,b.txt?root=other_")
    assert found == f"image-list:{here}/a.txt?root={here}/pictures/,{here}/b.txt?root={here}/other_"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("lmdb:a?size=3x3", "no option 'size'"),
        ("image-list:a?size=3", "'size' cannot be read"),
        ("image-list:a?color=maybe", "'color' cannot be read"),
        ("image-list:a?color=yes&color=no", "given twice"),
        ("hdf5:a.h5?names=data|label&dtypes=float32", "names data|label, dtypes float32\n"),
        ("hdf5:a.h5?names=data&dtypes=float32|int64", "not one dtype for each name"),
        ("hdf5:a.h5?dtypes=float32|int64", "names not given, dtypes float32|int64"),
    ],
)
def test_wrong_options_are_told(spec: str, told: str) -> None:
    with pytest.raises(DataError, match=re.escape(told)):
        open_data(spec)


def test_dtypes_follow_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"], file["label"] = np.zeros((4, 2), "f4"), np.arange(4, dtype="f4")
    for options, dtypes in (
        ("names=label|data", ["float32", "float32"]),
        ("names=label|data&dtypes=int64|float64", ["int64", "float64"]),
    ):
        fields = parse_stored("hdf5", f"{tmp_path}/a.h5?{options}").open().fields
        assert [field.name for field in fields] == ["label", "data"]
        assert [field.dtype for field in fields] == dtypes


def check_same(brought: Imported, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    """Whether the text of a definition's data opens the same samples from another folder."""
    first, text, rows = brought.data(), brought.data_text(), np.array([0, 2])
    expected = first.train.batch(rows)
    monkeypatch.chdir(elsewhere)
    found = open_data(text)
    assert found.train.fields == first.train.fields
    assert all(map(np.array_equal, found.train.batch(rows), expected))
    assert absolute(text) == text


@pytest.mark.parametrize("beside", [True, False])
def test_pictures_that_a_definition_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    text_folder = tmp_path if beside else tmp_path / "text"
    text_folder.mkdir(exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 6, 3), np.uint8)
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(picture(image))
    (text_folder / "list.txt").write_text("".join(f"{n}.png {n}\n" for n in range(3)))
    settings = 'source: "list.txt" batch_size: 2 new_height: 4 new_width: 4 is_color: false'
    rest = f"image_data_param {{ {settings} }}"
    text = layer("ImageData", rest, bottom="", top="data label", name="images")
    text += layer("ReLU", bottom="data")
    check_same(bring(text_folder, text), monkeypatch, Path("/"))


def test_rows_that_a_definition_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.arange(12.0).reshape(3, 4)
        file["label"] = np.arange(3, dtype=np.float32)[:, None]
    (tmp_path / "list.txt").write_text("a.h5\n")
    settings = 'hdf5_data_param { source: "list.txt" batch_size: 2 }'
    text = layer("HDF5Data", settings, bottom="", top="label data", name="rows")
    text += layer("ReLU", bottom="data")
    check_same(bring(tmp_path, text, dtype="float32"), monkeypatch, Path("/"))
