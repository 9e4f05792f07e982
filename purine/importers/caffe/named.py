"""The sources that a definition names: where they are, and opening them as sources of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from purine.data import Hdf5Source, ImageListSource, LmdbSource, Source
from purine.data.lmdb import is_leveldb
from purine.errors import DataError
from purine.importers.caffe.files import located

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
        if self.type == "MemoryData":
            raise DataError(
                f"layer {self.layer!r} (MemoryData) names no source",
                where=self.where,
                op=self.layer,
                expected="a source that can be opened",
                found="arrays that the program gives",
                remedy="give the run data=DataSet('name', ArraySource(images, labels))",
            )
        path = located(self.path, roots)
        if path is None:
            raise DataError(
                f"the source of layer {self.layer!r} ({self.type}) is not there",
                where=self.where,
                op=self.layer,
                expected=f"{self.path!r} in one of "
                + ", ".join(str(root.resolve()) for root in roots),
                found="nothing at this path",
                remedy="pass root= with the folder where the path begins, or data of your own",
            )
        labels = len(self.dtypes) > 1
        if self.type == "HDF5Data":
            root = roots[0] if len(roots) == 1 else None
            return Hdf5Source(path, names=tuple(self.dtypes), dtypes=self.dtypes, root=root)
        if self.type == "ImageData":
            folder = self._folder(roots)
            color = self.color is not False
            return ImageListSource(path, size=self.size, color=color, root=folder, labels=labels)
        return LmdbSource(path, color=self.color, labels=labels)

    def _folder(self, roots: Sequence[Path]) -> str | None:
        """What comes before the names of pictures."""
        if self.folder:
            found = located(self.folder, roots)
            return self.folder if found is None else str(found)
        return str(roots[0]) if len(roots) == 1 else None
