from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from purine.data import LmdbSource, open_data
from purine.errors import DataError
from tests.data.caffe_files import datum, encoded, picture, write_lmdb

IMAGES = np.arange(5 * 3 * 4 * 2, dtype=np.uint8).reshape(5, 3, 4, 2)


def samples() -> list[bytes]:
    return [datum(image, label) for image, label in zip(IMAGES, (3, 0, 1, 0, 2), strict=True)]


def test_bytes_in_the_order_of_keys(tmp_path: Path) -> None:
    source = LmdbSource(write_lmdb(tmp_path / "db", samples()))
    assert (len(source), source.classes) == (5, 4)
    assert list(map(str, source.fields)) == ["image: uint8 3x4x2", "label: int64 scalar"]
    image, label = source.batch(np.array([4, 0, 4]))
    assert image.tolist() == IMAGES[[4, 0, 4]].tolist()
    assert label.tolist() == [2, 3, 2]


def test_floats_and_images_alone(tmp_path: Path) -> None:
    values = (IMAGES / 7).astype(np.float32)
    path = write_lmdb(tmp_path / "db", [datum(image, -1) for image in values])
    (image,) = LmdbSource(path, labels=False).batch(np.arange(5))
    assert image.numpy().tolist() == values.tolist()
    assert LmdbSource(path).classes is None


def test_pictures_are_blue_first(tmp_path: Path) -> None:
    red = np.zeros((2, 3, 3), np.uint8)
    red[..., 0] = 200
    source = LmdbSource(write_lmdb(tmp_path / "db", [encoded(picture(red), 1)]))
    assert source.fields[0].shape == (3, 2, 3)
    assert source.batch(np.array([0]))[0][0].amax((1, 2)).tolist() == [0, 0, 200]


def test_grey_pictures(tmp_path: Path) -> None:
    grey = np.full((2, 3), 9, np.uint8)
    path = write_lmdb(tmp_path / "db", [encoded(picture(grey), 1)])
    assert LmdbSource(path).fields[0].shape == (1, 2, 3)
    assert LmdbSource(path, color=True).fields[0].shape == (3, 2, 3)


def test_by_name_and_by_folder(tmp_path: Path) -> None:
    train = write_lmdb(tmp_path / "train_lmdb", samples())
    test = write_lmdb(tmp_path / "test_lmdb", samples()[:2])
    data = open_data(f"lmdb:{train},{test}")
    assert data.test is not None
    assert (data.name, len(data.train), len(data.test)) == ("train_lmdb", 5, 2)
    assert open_data(f"lmdb:{train}").test is None
    assert len(open_data(str(train)).train) == 5


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([], "the database is empty"),
        ([b"\x22\x10abc"], "a sample is damaged"),
        ([b""], "not the size that it states"),
        ([samples()[0][:-2] + b"\x10\x09"], "not the size that it states"),
        ([encoded(b"\x89PNG and no more", 0)], "cannot be decoded"),
        ([encoded(picture(np.zeros((40, 40), np.uint8))[:50], 0)], "cannot be decoded"),
    ],
)
def test_wrong_samples(tmp_path: Path, values: list[bytes], what: str) -> None:
    path = write_lmdb(tmp_path / "db", values)
    with pytest.raises(DataError, match=what) as caught:
        LmdbSource(path)
    assert str(path) in str(caught.value.where)


def test_samples_of_two_sizes(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", [samples()[0], datum(IMAGES[0, :, :3], 1)])
    with pytest.raises(DataError, match="differs from the first") as caught:
        LmdbSource(path).batch(np.arange(2))
    assert "00000001" in str(caught.value.where)


def test_damaged_missing_and_other_databases(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", samples() * 500)
    file = path / "data.mdb"
    data = file.read_bytes()
    for length in (0, 100, 5000, len(data) // 2):
        file.write_bytes(data[:length])
        with pytest.raises(DataError, match="cannot be read"):
            LmdbSource(path)
    with pytest.raises(DataError, match="there is no database"):
        open_data(f"lmdb:{tmp_path / 'none'}")
    with pytest.raises(DataError, match="path is missing"):
        open_data("lmdb:")
    other = tmp_path / "level"
    other.mkdir()
    (other / "CURRENT").write_text("MANIFEST-000001\n")
    for spec in (str(other), f"lmdb:{other}"):
        with pytest.raises(DataError, match="LevelDB") as caught:
            open_data(spec)
        assert "convert_imageset" in str(caught.value.remedy)
