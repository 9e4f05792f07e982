from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from purine.data import ImageListSource, open_data
from purine.errors import DataError
from tests.data.caffe_files import picture

RED = np.zeros((4, 6, 3), np.uint8)
RED[..., 0] = 200


def listed(folder: Path, text: str = "red one.png 2\ngrey.png\t0\n") -> Path:
    (folder / "red one.png").write_bytes(picture(RED))
    (folder / "grey.png").write_bytes(picture(np.full((4, 6), 50, np.uint8)))
    path = folder / "list.txt"
    path.write_text(text)
    return path


def test_pictures_are_blue_first_and_all_coloured(tmp_path: Path) -> None:
    source = ImageListSource(listed(tmp_path))
    assert (len(source), source.classes, source.fields[0].shape) == (2, 3, (3, 4, 6))
    image, label = source.batch(np.array([1, 0]))
    assert label.tolist() == [0, 2]
    assert image.amax((2, 3)).tolist() == [[50, 50, 50], [0, 0, 200]]


def test_grey_and_without_labels(tmp_path: Path) -> None:
    source = ImageListSource(listed(tmp_path), color=False, labels=False)
    (image,) = source.batch(np.array([0]))
    assert image.shape == (1, 1, 4, 6)
    assert int(image[0, 0, 0, 0]) == round(0.299 * 200)


def test_a_size_interpolates_between_points(tmp_path: Path) -> None:
    ramp = np.tile(np.array([0, 100, 200, 40], np.uint8), (2, 1))
    (tmp_path / "ramp.png").write_bytes(picture(ramp))
    path = listed(tmp_path, "ramp.png 0\n")
    source = ImageListSource(path, size=(1, 2), color=False)
    assert source.batch(np.array([0]))[0].flatten().tolist() == [50, 120]


def test_a_root_is_put_before_names(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    listed(folder)
    path = tmp_path / "list.txt"
    for root, name in ((folder, "grey.png"), (f"{folder}/gr", "ey.png"), (folder, "/grey.png")):
        path.write_text(f"{name} 0\n")
        assert ImageListSource(path, root=root).fields[0].shape == (3, 4, 6)


def test_by_name(tmp_path: Path) -> None:
    assert len(open_data(f"image-list:{listed(tmp_path)}").train) == 2


@pytest.mark.parametrize("text", ["", "grey.png\n", "grey.png x\n", "grey.png --1\n", " 3\n"])
def test_wrong_lists(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="list of pictures") as caught:
        ImageListSource(listed(tmp_path, text))
    assert "list.txt" in str(caught.value.where)


def test_missing_damaged_and_odd_pictures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be decoded") as caught:
        ImageListSource(listed(tmp_path, "none.png 1\n"))
    assert "none.png" in str(caught.value.where)
    (tmp_path / "bad.png").write_bytes(picture(RED)[:50])
    source = ImageListSource(listed(tmp_path, "grey.png 0\nbad.png 1\n"))
    with pytest.raises(DataError, match="cannot be decoded"):
        source.batch(np.array([1]))
    (tmp_path / "odd.png").write_bytes(picture(RED[:2]))
    with pytest.raises(DataError, match="differs in size") as caught:
        ImageListSource(listed(tmp_path, "grey.png 0\nodd.png 1\n")).batch(np.arange(2))
    assert caught.value.found == "[3, 2, 6]"
    with pytest.raises(DataError, match="list of pictures"):
        ImageListSource(tmp_path / "none.txt")
