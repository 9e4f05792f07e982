"""Files that a definition names: finding and reading them, and opening them as sources of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from purine.data import Field
from purine.data.lmdb import is_leveldb
from purine.data.stored import Stored
from purine.errors import DataError, FormatError
from purine.files import read_bounded, unreadable

__all__ = ["NamedSource", "located", "read_bytes", "within"]

_BYTES = 64 << 20  # of a text


def located(name: str, roots: Sequence[Path]) -> Path | None:
    """The file or folder of this name, from the first of the roots that has it."""
    if not name or "\0" in name:
        return None
    return next((root / name for root in roots if (root / name).exists()), None)


def within(roots: Sequence[Path]) -> str:
    """In words, where a file is looked for: each folder once, and in full."""
    folders = list(dict.fromkeys(str(root.resolve()) for root in roots))
    return f"in {folders[0]}" if len(folders) == 1 else f"in one of {', '.join(folders)}"


def read_bytes(path: Path, expected: str, most: int = _BYTES) -> bytes:
    """All bytes of a file that ought to be there, and to have at most `most` of them."""
    try:
        return read_bounded(path, most)
    except (OSError, ValueError) as error:
        expected = f"the path of {expected} of at most {most >> 20:,} MiB"
        raise unreadable(FormatError, path, error, expected=expected) from error


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

    def fields(self, roots: Sequence[Path]) -> tuple[Field, ...]:
        """The fields of the samples; none if there is nothing that can be read at the path."""
        path = located(self.path, roots)
        return () if path is None or is_leveldb(path) else self.stored(roots).open().fields

    def stored(self, roots: Sequence[Path]) -> Stored:
        """Where the source is and how it is read; the first of the roots that has it counts."""
        if self.type == "MemoryData":
            what = f"layer {self.layer!r} (MemoryData) names no source"
            expected, given = "a source that can be opened", "arrays that the program gives"
            remedy = "give the run data=DataSet('name', ArraySource(images, labels)); a job takes "
            raise self._error(what, expected, given, remedy + "--data")
        path = located(self.path, roots)
        if path is None:
            what = f"the source of layer {self.layer!r} ({self.type}) is not there"
            remedy = "in Python pass root= with the folder where the path begins, or give the run "
            remedy += "data of your own; on the command line --data"
            expected = f"{self.path!r} {within(roots)}"
            raise self._error(what, expected, "nothing at this path", remedy)
        labels = None if len(self.dtypes) > 1 else False
        options: dict[str, object]
        if self.type == "HDF5Data":
            kind, root = "hdf5", self._listed_at(path, roots)
            dtypes = tuple(self.dtypes.values())
            options = {"names": tuple(self.dtypes), "dtypes": dtypes, "root": root}
        elif self.type == "ImageData":
            kind, folder = "image-list", located(self.folder, roots) or self.folder
            root = str(folder) if self.folder else self._listed_at(path, roots)
            color = None if self.color else self.color
            options = {"size": self.size, "color": color, "root": root, "labels": labels}
        else:
            kind, options = "lmdb", {"color": self.color, "labels": labels}
        return Stored(kind, path, {k: v for k, v in options.items() if v is not None})

    def _error(self, what: str, expected: str, found: str, remedy: str) -> DataError:
        return DataError(what, expected, found, remedy, where=self.where, op=self.layer)

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
