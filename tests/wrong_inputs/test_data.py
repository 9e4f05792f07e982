"""What users get wrong in data sets, through the real entry point."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from purine.graph import save_yaml
from purine.zoo import mlp
from tests.wrong_inputs.refused import refused


def idx(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


IMAGES = np.zeros((40, 28, 28), np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 4


def idx_folder(folder: Path, **changed: bytes) -> str:
    """A good data set of IDX files but for the files given."""
    files = {
        "train_images": idx(IMAGES),
        "train_labels": idx(LABELS),
        "t10k_images": idx(IMAGES),
        "t10k_labels": idx(LABELS),
    } | changed
    folder.mkdir()
    for name, data in files.items():
        part, content = name.split("_")
        (folder / f"{part}-{content}-idx{3 if content == 'images' else 1}-ubyte").write_bytes(data)
    return str(folder)


def corrupt_gzip(tmp: Path) -> str:
    folder = Path(idx_folder(tmp / "data"))
    plain = folder / "train-images-idx3-ubyte"
    packed = bytearray(gzip.compress(plain.read_bytes()))
    packed[len(packed) // 2] ^= 0xFF
    plain.unlink()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(packed)
    return str(folder)


def npz(tmp: Path, **arrays: np.ndarray) -> str:  # type: ignore[type-arg]
    np.savez(tmp / "data.npz", **arrays)  # type: ignore[arg-type]
    return str(tmp / "data.npz")


DATA: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "missing folder": (
        lambda tmp: str(tmp / "none"),
        ["none: there is no such file or folder", "expected: fashion-mini", "found: nothing"],
    ),
    "empty folder": (
        lambda tmp: str(tmp),
        ["this folder is no data set", "train-images-idx3-ubyte", "found: an empty folder"],
    ),
    "folder of pictures": (
        lambda tmp: str((tmp / "a.JPG").write_bytes(b"") or tmp),
        ["this folder is no data set", "found: a.JPG", "name that: image-list:TRAIN,TEST"],
    ),
    "unknown name": (
        lambda tmp: "fashion-mimi",
        ["there is no data set 'fashion-mimi'", "expected: fashion-mini", "'fashion-mini'?"],
    ),
    "unknown option": (
        lambda tmp: "synthetic:imago=1x28x28",
        ["there is no option 'imago'", "expected: image", "did you mean 'image'?"],
    ),
    "wrong option": (
        lambda tmp: "synthetic:image=28x28",
        ["option 'image' cannot be read", "expected: CxHxW", "found: '28x28'"],
    ),
    "truncated IDX": (
        lambda tmp: idx_folder(tmp / "data", train_images=idx(IMAGES)[:-5]),
        ["train-images-idx3-ubyte", "expected: 31376 bytes", "found: 31371 bytes"],
    ),
    "wrong magic": (
        lambda tmp: idx_folder(tmp / "data", train_labels=b"PNG!" + idx(LABELS)[4:]),
        ["train-labels-idx1-ubyte", "expected: ", "found: 50 4e 47 21"],
    ),
    "labels out of range": (
        lambda tmp: idx_folder(tmp / "data", t10k_labels=idx(LABELS + 1)),
        ["t10k-labels-idx1-ubyte", "expected: ", "found: ", "4"],
    ),
    "fewer labels than images": (
        lambda tmp: idx_folder(tmp / "data", train_labels=idx(LABELS[:39])),
        ["40", "39", "expected: "],
    ),
    "corrupt gzip": (corrupt_gzip, ["train-images-idx3-ubyte.gz", "gzip", "expected: ", "found: "]),
    "npz without labels": (
        lambda tmp: npz(tmp, x_train=IMAGES),
        ["data.npz", "y_train", "expected: ", "found: x_train"],
    ),
    "npz that is none": (
        lambda tmp: str((tmp / "data.npz").write_bytes(b"no archive") and tmp / "data.npz"),
        ["data.npz", "expected: ", "found: "],
    ),
    "images too small for the net": (
        lambda tmp: "synthetic:image=1x8x8,classes=4,count=100",
        ["images of [1, 8, 8] are too small", "op 'conv2' (Conv)", "[8, 20, 2, 2]", "Kernel size"],
    ),
    "tokens for a net of images": (
        lambda tmp: "synthetic-tokens:length=8,vocabulary=10,count=100",
        ["net 'lenet' does not fit", "expected: images [C, H, W]", "found: "],
    ),
    "pixels for a net of images": (
        lambda tmp: "synthetic-masks:image=1x28x28,classes=10,count=100",
        ["op 'data' does not fit", "expected: image: float32 1x28x28, label: int64 28x28"],
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_wrong_data(tmp_path: Path, name: str) -> None:
    make, texts = DATA[name]
    spec = make(tmp_path)
    out = str(tmp_path / "out")
    refused(tmp_path, ["train", "--data", spec, "--batch", "8", "--out", out], texts)


def test_labels_of_more_classes_than_the_net_scores(tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    save_yaml(mlp(batch=4, image=(1, 8, 8), classes=10), net)
    data = "synthetic:image=1x8x8,classes=11,count=20"
    texts = ["has 11 classes, and the net scores for 10", "expected: at most 10 classes"]
    out = str(tmp_path / "out")
    refused(tmp_path, ["train", "--net", str(net), "--data", data, "--out", out], texts)
