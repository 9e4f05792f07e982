"""The manifest of a checkpoint: JSON that describes the values and protects them by checksums."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from purine.errors import CheckpointError
from purine.files import read_bounded
from purine.registry.aten import dtype_name
from purine.runtime._checkpoint_folder import iteration_of

VERSION = 2
"""The version of the format. A manifest of version 1 has no checksum of itself: it is read if the
values, which have one, agree with its iteration and its seed."""

MANIFEST = "manifest.json"
STATES = "states.safetensors"
_BYTES = 64 << 20  # of a manifest
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says; `forms` describes the value of each state as `describe` does."""

    version: int
    iteration: int
    seed: int
    digest: str
    bytes: int
    sha256: str
    forms: Mapping[str, str]
    extra: Mapping[str, object]


def write_manifest(
    folder: Path,
    values: Mapping[str, Tensor],
    identity: Mapping[str, object],
    extra: Mapping[str, object],
) -> None:
    """Write the manifest for the stored values: one line for each field and each state.

    `identity` is the iteration, the seed and the digest. `extra` that is no JSON is an error of
    Python.
    """
    file = folder / STATES
    head = {
        "version": VERSION,
        **identity,
        "purine": purine_version(),
        "torch": str(torch.__version__),
        "file": {"name": STATES, "bytes": file.stat().st_size, "sha256": sha256_of(file)},
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    states = [
        {"name": name, "shape": list(value.shape), "dtype": dtype_name(value.dtype)}
        for name, value in values.items()
    ]
    rows = ",\n".join(f"    {json.dumps(state, ensure_ascii=False)}" for state in states)
    lines.append(f'  "states": [\n{rows}\n  ]')
    indented = json.dumps(dict(extra), indent=2, allow_nan=False).replace("\n", "\n  ")
    lines.append(f'  "extra": {indented}')
    own = checksum(json.loads("{" + ",".join(lines) + "}"))
    lines.append(f'  "sha256": "{own}"')
    (folder / MANIFEST).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def checksum(manifest: Mapping[str, object]) -> str:
    """The checksum of all fields of a manifest but the checksum itself, whatever their spacing."""
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
        remedy = "read it with the purine that wrote it"
        raise unusable(path, what, expected, found, remedy=remedy)
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
    file = _field(content, "file", dict, path)
    return Manifest(
        version,
        iteration,
        seed=_field(content, "seed", int, path),
        digest=_field(content, "digest", str, path),
        bytes=_field(file, "bytes", int, path),
        sha256=_field(file, "sha256", str, path),
        forms=dict(_read_state(entry, path) for entry in _field(content, "states", list, path)),
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


def _read_state(entry: object, path: Path) -> tuple[str, str]:
    """The name of a state and the form of its value."""
    if not isinstance(entry, dict):
        what = "the manifest lists something that is no state"
        raise unusable(path, what, "an object with name, shape and dtype", repr(entry))
    shape = _field(entry, "shape", list, path)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise unusable(path, "a state's shape is wrong", "a list of sizes", repr(shape))
    return _field(entry, "name", str, path), _form(_field(entry, "dtype", str, path), shape)


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


def describe(value: Tensor) -> str:
    """The dtype and the shape of a value, in words."""
    return _form(dtype_name(value.dtype), list(value.shape))


def _form(dtype: str, shape: list[int]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def some_names(names: Collection[str]) -> str:
    """How many names there are, and the first of them."""
    first = ", ".join(list(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} names: {first}{more}" if names else "no names"
