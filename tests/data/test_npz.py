from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from purine.data import npy_dataset, npz_dataset
from purine.errors import DataError

IMAGES = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)
LABELS = np.array([0, 1, 1, 2])
SPELLINGS = [
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
]


@pytest.mark.parametrize("keys", SPELLINGS)
@pytest.mark.parametrize("folder", [False, True])
def test_train_and_test(tmp_path: Path, keys: tuple[str, ...], folder: bool) -> None:
    arrays = dict(zip(keys, (IMAGES, LABELS, IMAGES[:2], LABELS[:2]), strict=True))
    if folder:
        for key, array in arrays.items():
            np.save(tmp_path / f"{key}.npy", array)
        data = npy_dataset(tmp_path)
        assert data.name == tmp_path.name
    else:
        np.savez_compressed(tmp_path / "digits.npz", **arrays)
        data = npz_dataset(tmp_path / "digits.npz")
        assert data.name == "digits"
    assert data.test is not None
    assert (len(data.train), len(data.test), data.test.classes) == (4, 2, 3)
    image, label = data.train.batch(np.array([3, 0]))
    assert image[:, 0].tolist() == IMAGES[[3, 0]].tolist()
    assert label.tolist() == [2, 0]


def test_a_pair_alone_is_for_training(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    data = npz_dataset(tmp_path / "a.npz")
    assert len(data.train) == 4
    assert data.test is None


def test_a_mapped_batch_can_be_written_to(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS)
    source = npy_dataset(tmp_path).train
    source.batch(np.arange(4))[0].fill_(0)
    assert source.batch(np.arange(4))[0][:, 0].tolist() == IMAGES.tolist()


def test_missing_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES)
    with pytest.raises(DataError, match="array is missing") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert caught.value.where == str(tmp_path / "a.npz")
    assert caught.value.expected == "y_test"
    assert caught.value.found == "x_train, y_train, x_test"


def test_no_known_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pictures=IMAGES)
    with pytest.raises(DataError, match="array is missing") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert "x_train, y_train, x_test, y_test or train_images" in str(caught.value.expected)
    assert caught.value.found == "pictures"


@pytest.mark.parametrize("folder", [False, True])
def test_objects_are_never_unpickled(tmp_path: Path, folder: bool) -> None:
    objects = np.array([object()] * 4)
    np.savez(tmp_path / "a.npz", images=objects, labels=LABELS)
    np.save(tmp_path / "images.npy", objects)
    np.save(tmp_path / "labels.npy", LABELS)
    with pytest.raises(DataError, match="holds Python objects") as caught:
        npy_dataset(tmp_path) if folder else npz_dataset(tmp_path / "a.npz")
    assert caught.value.expected == "arrays of numbers"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert "No such file" in str(caught.value.found)


def test_truncated_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="cannot be read") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert caught.value.where == str(tmp_path / "a.npz")


def test_damaged_member(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data.replace(IMAGES.tobytes(), IMAGES[::-1].tobytes()))
    with pytest.raises(DataError, match="cannot be read") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert caught.value.expected == "a readable array images"


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Write an archive whose images have another .npy text."""
    np.savez(path, images=IMAGES, labels=LABELS)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["images.npy"] = change(members["images.npy"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


HEADERS = {
    "larger": (b"(4, 3, 3), ", b"(4, 3, 30),", "36 bytes of values"),
    "without end": (b"(4, 3, 3), }", b"(9**99,3), }", "malformed"),
    "10^18 images": (b"(4, 3, 3), }      ", b"(10000000000000000", ""),
    "negative": (b"(4, 3, 3), ", b"(-4,-3, 3),", ""),
    "no shape": (b"'shape'", b"'shapx'", ""),
    "deep": (b"(4, 3, 3), }", b"((((((((((((", ""),
    "another dtype": (b"'|u1'", b"'<f8'", "288"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_lie(tmp_path: Path, name: str) -> None:
    old, new, found = HEADERS[name]
    path = tmp_path / "a.npz"
    rewritten(path, lambda data: data.replace(old, new))
    with pytest.raises(DataError, match="cannot be read") as caught:
        npz_dataset(path)
    assert caught.value.expected == "a readable array images"
    assert found in str(caught.value.found)
    assert len(str(caught.value)) < 600


def test_an_archive_that_expands_to_more_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purine.data._files.available_memory", lambda: 1 << 20)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, images=np.zeros((9000, 28, 28), np.uint8), labels=np.zeros(9000, int))
    with pytest.raises(DataError, match="array images is too large") as caught:
        npz_dataset(path)
    assert "7,056,000 bytes" in str(caught.value.found)


def test_an_encrypted_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # the flags of each member, twice
        start = data.find(mark)
        while start >= 0:
            data[start + place] |= 1
            start = data.find(mark, start + 1)
    path.write_bytes(data)
    with pytest.raises(DataError, match="the archive is encrypted"):
        npz_dataset(path)


def test_an_npy_file_that_lies(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS)
    data = (tmp_path / "images.npy").read_bytes()
    for new in (b"(4, 3, 30),", b"(-4,-3, 3),", b"(((((((((((", b"(4, 3, 3,,,"):
        (tmp_path / "images.npy").write_bytes(data.replace(b"(4, 3, 3), ", new))
        with pytest.raises(DataError, match="cannot be read"):
            npy_dataset(tmp_path)


def test_text_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("<html>not found</html>")
    with pytest.raises(DataError, match="cannot be read") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert caught.value.found == "neither .npy nor .npz data"


def test_an_array_is_no_archive(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(DataError, match="cannot be read") as caught:
        npz_dataset(tmp_path / "a.npz")
    assert caught.value.found == "a single array"


def test_truncated_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS)
    data = (tmp_path / "images.npy").read_bytes()
    (tmp_path / "images.npy").write_bytes(data[:-5])
    with pytest.raises(DataError, match="cannot be read") as caught:
        npy_dataset(tmp_path)
    assert caught.value.where == str(tmp_path / "images.npy")
