"""The manifest of a checkpoint: JSON that describes the values and protects them by checksums."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from purine.errors import CheckpointError
from purine.files import read_bounded
from purine.placement.values import merged_spans
from purine.registry.aten import dtype_name
from purine.runtime._checkpoint_folder import iteration_of

VERSION = 3
"""The newest version of the format. Version 3 is for several files, which several hosts wrote;
version 2, for one file, is still written. A manifest of version 1 has no checksum of itself: it is
read if the values, which have one, agree with its iteration and its seed."""

MANIFEST = "manifest.json"
STATES = "states.safetensors"
_BYTES = 64 << 20  # of a manifest
_FILE = re.compile(r"states-[0-9]+\.safetensors")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Form:
    """The dtype and the shape of a value.

    >>> print(Form("float32", (2, 3)), Form("int64", ()), sep=", ")
    float32 2x3, int64 scalar
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a state in a file, under the state's name: spans along an axis, or all of it."""

    file: str
    axis: int = 0
    spans: tuple[tuple[int, int], ...] | None = None

    def form(self, whole: Form) -> Form:
        """The form of the piece of a state."""
        if self.spans is None:
            return whole
        size = sum(high - low for low, high in self.spans)
        shape = (*whole.shape[: self.axis], size, *whole.shape[self.axis + 1 :])
        return replace(whole, shape=shape)


@dataclass(frozen=True, slots=True)
class Stored:
    """A state in a checkpoint: its form, and the pieces that together are the whole."""

    form: Form
    pieces: tuple[Piece, ...] = (Piece(STATES),)


@dataclass(frozen=True, slots=True)
class File:
    """A file of values, with the size and hash that tell whether it is intact."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a manifest."""

    version: int
    iteration: int
    seed: int
    digest: str
    files: Mapping[str, File]
    states: Mapping[str, Stored]
    extra: Mapping[str, object]


def file_name(number: int) -> str:
    """The name of the file that host `number` writes."""
    return f"states-{number}.safetensors"


def described(path: Path) -> File:
    """A file as it is on disk."""
    return File(path.name, path.stat().st_size, sha256_of(path))


def write_manifest(
    folder: Path,
    states: Mapping[str, Stored],
    files: Sequence[File],
    identity: Mapping[str, object],
    extra: Mapping[str, object],
) -> None:
    """Write the manifest for the stored values: one line for each field and each state.

    `identity` is the iteration, the seed and the digest. `extra` that is no JSON is an error of
    Python.
    """
    alone = [file.name for file in files] == [STATES]
    entries = [asdict(file) for file in files]
    head = {
        "version": 2 if alone else VERSION,
        **identity,
        "purine": purine_version(),
        "torch": str(torch.__version__),
        **({"file": entries[0]} if alone else {"files": entries}),
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    listed = [_state_entry(name, state, alone) for name, state in states.items()]
    rows = ",\n".join(f"    {json.dumps(state, ensure_ascii=False)}" for state in listed)
    lines.append(f'  "states": [\n{rows}\n  ]')
    indented = json.dumps(dict(extra), indent=2, allow_nan=False).replace("\n", "\n  ")
    lines.append(f'  "extra": {indented}')
    own = checksum(json.loads("{" + ",".join(lines) + "}"))
    lines.append(f'  "sha256": "{own}"')
    (folder / MANIFEST).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _state_entry(name: str, state: Stored, alone: bool) -> dict[str, object]:
    form, first = state.form, state.pieces[0]
    entry: dict[str, object] = {"name": name, "shape": form.shape, "dtype": form.dtype}
    if alone:
        return entry
    if first.spans is None:
        return {**entry, "file": first.file}
    pieces = [{"file": piece.file, "spans": piece.spans} for piece in state.pieces]
    return {**entry, "axis": first.axis, "pieces": pieces}


def checksum(manifest: Mapping[str, object]) -> str:
    """The checksum of all fields of a manifest except the checksum itself, whatever their
    spacing."""
    fields = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def purine_version() -> str:
    """The version of the package as installed."""
    try:
        return importlib.metadata.version("purine")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the checkpoint in folder `path` and check it; the values are not read.

    The error for a damaged manifest has no remedy: the caller adds it.
    """
    content = _read_json(path)
    version = _field(content, "version", int, path)
    if not 1 <= version <= VERSION:
        what, expected = f"the checkpoint has format version {version}", f"version 1 to {VERSION}"
        found = f"version {version}, written by purine {content.get('purine', 'unknown')}"
        raise unusable(path, what, expected, found, remedy="read it with the purine that wrote it")
    if version > 1 or "sha256" in content:
        stated, actual = _field(content, "sha256", str, path), checksum(content)
        if stated != actual:
            what = "the manifest is damaged, or was changed"
            raise unusable(path, what, f"sha256 {stated} of its other fields", f"sha256 {actual}")
    iteration, named = _field(content, "iteration", int, path), iteration_of(path)
    if iteration < 0:
        raise unusable(path, "the iteration is negative", "0 or more", str(iteration))
    if named not in (None, iteration):
        what = "the checkpoint is of another iteration than its folder"
        raise unusable(path, what, f"iteration {named}", f"iteration {iteration}")
    files = _read_files(content, version, path)
    return Manifest(
        version,
        iteration,
        seed=_field(content, "seed", int, path),
        digest=_field(content, "digest", str, path),
        files=files,
        states=dict(
            _read_state(entry, files, path) for entry in _field(content, "states", list, path)
        ),
        extra=_field(content, "extra", dict, path),
    )


def _read_json(path: Path) -> dict[str, object]:
    unreadable = "the manifest cannot be read"
    try:
        content = json.loads(read_bounded(path / MANIFEST, _BYTES))
    except FileNotFoundError as error:
        raise unusable(path, "the manifest is missing", MANIFEST, "no such file") from error
    except OSError as error:
        raise unusable(path, "cannot read the manifest", MANIFEST, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise unusable(path, unreadable, f"{MANIFEST} in JSON", str(error)) from error
    if not isinstance(content, dict):
        raise unusable(path, unreadable, "a JSON object", type(content).__name__)
    return content


def _read_files(content: Mapping[str, object], version: int, path: Path) -> dict[str, File]:
    alone = version < 3
    files: dict[str, File] = {}
    listed = (
        [_field(content, "file", dict, path)] if alone else _field(content, "files", list, path)
    )
    for entry in listed:
        fields = _entry(entry, "a file", "name, bytes and sha256", path)
        name = STATES if alone else _field(fields, "name", str, path)
        if not alone and not _FILE.fullmatch(name):
            raise unusable(path, "a file has another name", file_name(0), repr(name))
        size, sha256 = _field(fields, "bytes", int, path), _field(fields, "sha256", str, path)
        files[name] = File(name, size, sha256)
    return files


def _read_state(entry: object, files: Mapping[str, File], path: Path) -> tuple[str, Stored]:
    fields = _entry(entry, "a state", "name, shape and dtype", path)
    shape = _field(fields, "shape", list, path)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise unusable(path, "a state's shape is wrong", "a list of sizes", repr(shape))
    name, dtype = (_field(fields, key, str, path) for key in ("name", "dtype"))
    form = Form(dtype, tuple(shape))
    if STATES in files:
        return name, Stored(form)
    if "pieces" not in fields:
        pieces: tuple[Piece, ...] = (Piece(_field(fields, "file", str, path)),)
    else:
        axis = _field(fields, "axis", int, path)
        pieces = tuple(
            _read_piece(item, axis, path) for item in _field(fields, "pieces", list, path)
        )
        if not (0 <= axis < len(shape) and cover(pieces, shape[axis])):
            what = f"the pieces of state {name!r} are not the whole"
            raise unusable(path, what, str(form), repr(fields["pieces"]), blob=name)
    for piece in pieces:
        if piece.file not in files:
            what = f"state {name!r} is in a file that the manifest does not list"
            raise unusable(path, what, some_names(files), piece.file, blob=name)
    return name, Stored(form, pieces)


def _read_piece(item: object, axis: int, path: Path) -> Piece:
    fields = _entry(item, "a piece", "file and spans", path)
    spans = _field(fields, "spans", list, path)
    for span in spans:
        ends = span if isinstance(span, list) and len(span) == 2 else []
        if not all(type(end) is int for end in ends) or not ends or ends[0] > ends[1]:
            raise unusable(path, "a span of a piece is wrong", "[start, end]", repr(span))
    return Piece(_field(fields, "file", str, path), axis, tuple((low, high) for low, high in spans))


def cover(pieces: Sequence[Piece], size: int) -> bool:
    """Whether pieces have every index of an axis exactly once."""
    spans = merged_spans(span for piece in pieces for span in piece.spans or ())
    return (spans or ((0, 0),)) == ((0, size),)


def _entry(entry: object, what: str, expected: str, path: Path) -> Mapping[str, object]:
    if not isinstance(entry, dict):
        what = f"the manifest lists something that is not {what}"
        raise unusable(path, what, f"an object with {expected}", repr(entry))
    return entry


def _field(content: Mapping[str, object], key: str, kind: type[_T], path: Path) -> _T:
    if key not in content:
        expected = f"a field {key!r}"
        raise unusable(path, f"the manifest has no {key!r}", expected, some_names(content))
    value = content[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        what = f"{key!r} in the manifest has the wrong type"
        raise unusable(path, what, kind.__name__, f"{type(value).__name__}: {value!r}")
    return value


def unusable(
    path: Path, what: str, expected: str, found: str, **more: str | None
) -> CheckpointError:
    """The error for a checkpoint that is missing, damaged or of another net."""
    return CheckpointError(what, where=path, expected=expected, found=found, **more)


def form_of(value: Tensor) -> Form:
    """The form of a value."""
    return Form(dtype_name(value.dtype), tuple(value.shape))


def some_names(names: Collection[str]) -> str:
    """How many names there are, and the first of them."""
    first = ", ".join(list(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} names: {first}{more}" if names else "no names"
