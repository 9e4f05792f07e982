"""Make the embedded sample of Fashion-MNIST from the full data set.

Takes the first 600 training and the first 100 test images of each class, in the order of the files.
The source is the folder of Debian's package dataset-fashion-mnist, or any folder of the four IDX
files. The same input gives the same bytes (with the same zlib).

    python scripts/make_fashion_mini.py [FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from purine.data import read_idx

CLASSES = 10
PER_CLASS = {"train": 600, "t10k": 100}
PACKAGE = Path(__file__).parents[1] / "purine" / "data" / "fashion_mini"


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write an array of uint8 as a gzip-compressed IDX file with nothing of the day in it."""
    header = bytes([0, 0, 0x08, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as packed,
    ):
        packed.write(header + array.tobytes())


def choose(labels: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The numbers of the first `count` samples of each class, ascending."""
    chosen = [np.flatnonzero(labels == label)[:count] for label in range(CLASSES)]
    return np.sort(np.concatenate(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("/usr/share/datasets/fashion-mnist")
    )
    parser.add_argument("--out", type=Path, default=PACKAGE)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part, count in PER_CLASS.items():
        images, labels = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
        values = read_idx(arguments.folder / labels)
        chosen = choose(values, count)
        write_idx(arguments.out / images, read_idx(arguments.folder / images)[chosen])
        write_idx(arguments.out / labels, values[chosen])


if __name__ == "__main__":
    main()
