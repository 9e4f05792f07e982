"""The sources that a definition names: where they are, and opening them as sources of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from purine.data import Source
from purine.data.lmdb import is_leveldb
from purine.data.stored import Stored
from purine.errors import DataError
from purine.importers.caffe.files import located, within

__all__ = ["NamedSource"]


@dataclass(frozen=True, slots=True)
class NamedSource:
    """What a layer says of where its samples are.

    `dtypes` are those of its tops, in their order. `size`, `color` and `folder` are for pictures:
    what they are brought to, how many channels they have, and what comes before their names.
    """

    layer: str
    type: str
    path: str
    where: str
    dtypes: Mapping[str, str] = field(default_factory=dict)
    size: tuple[int, int] | None = None
    color: bool | None = None
    folder: str = ""

    def readable(self, roots: Sequence[Path]) -> bool:
        """Whether there is something at the path that `open` may be able to read."""
        path = located(self.path, roots)
        return path is not None and not is_leveldb(path)

    def open(self, roots: Sequence[Path]) -> Source:
        """The source itself; relative paths begin at the first of the roots that has them."""
        return self.stored(roots).open()

    def stored(self, roots: Sequence[Path]) -> Stored:
        """Where the source is and how it is read."""
        if self.type == "MemoryData":
            raise DataError(
                f"layer {self.layer!r} (MemoryData) names no source",
                where=self.where,
                op=self.layer,
                expected="a source that can be opened",
                found="arrays that the program gives",
                remedy="give the run data=DataSet('name', ArraySource(images, labels)); "
                "a job takes --data",
            )
        path = located(self.path, roots)
        if path is None:
            raise DataError(
                f"the source of layer {self.layer!r} ({self.type}) is not there",
                where=self.where,
                op=self.layer,
                expected=f"{self.path!r} {within(roots)}",
                found="nothing at this path",
                remedy="in Python pass root= with the folder where the path begins, or give the "
                "run data of your own; on the command line --data",
            )
        labels: dict[str, object] = {} if len(self.dtypes) > 1 else {"labels": False}
        if self.type == "HDF5Data":
            names = {"names": tuple(self.dtypes), "dtypes": tuple(self.dtypes.values())}
            return Stored("hdf5", path, {**names, **_root(self._listed_at(path, roots))})
        if self.type == "ImageData":
            size = {} if self.size is None else {"size": self.size}
            color = {} if self.color is not False else {"color": False}
            return Stored(
                "image-list", path, {**size, **color, **self._folder(path, roots), **labels}
            )
        color = {} if self.color is None else {"color": self.color}
        return Stored("lmdb", path, {**color, **labels})

    def _folder(self, path: Path, roots: Sequence[Path]) -> dict[str, str]:
        """What comes before the names of pictures."""
        if not self.folder:
            return _root(self._listed_at(path, roots))
        folder = located(self.folder, roots)
        return _root(self.folder if folder is None else str(folder))

    def _listed_at(self, path: Path, roots: Sequence[Path]) -> str | None:
        """Where the names in a list begin: the only root, or the first if it has what is listed.

        None leaves it to the source, which looks beside the list.
        """
        if len(roots) == 1:
            return f"{roots[0]}/"
        try:
            name = path.read_text(encoding="utf-8").lstrip().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError):
            return None  # the source says what is wrong
        if self.type == "ImageData":
            name = name.replace("\t", " ").rpartition(" ")[0].strip()
        there = name and not Path(name).is_absolute() and (roots[0] / name).exists()
        return f"{roots[0]}/" if there else None


def _root(folder: str | None) -> dict[str, str]:
    return {} if folder is None else {"root": folder}
