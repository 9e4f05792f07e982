"""Checkpoints: the values of all states after an iteration, so that a run can go on from there.

A checkpoint is the folder `<run>/checkpoints/<iteration>/` with `states.safetensors`, the values by
blob name, and `manifest.json`, which says what they are and how to tell that they are undamaged: it
holds a checksum of the values, and one of itself.

The main invariant: a checkpoint that can be seen is whole. It is written under a temporary name,
flushed to disk and then renamed; a folder is only deleted after it lost its name. A crash at any
moment leaves the previous checkpoint, or the new one, or both.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from purine.errors import CheckpointError, ConfigError
from purine.files import read_bounded
from purine.graph import Graph
from purine.registry.aten import dtype_name
from purine.registry.clock import ITERATION, SEED

__all__ = [
    "LARGEST",
    "Checkpoint",
    "checksum",
    "latest",
    "load",
    "match",
    "purine_version",
    "save",
]

VERSION = 2
"""The version of the layout below, raised when an older reader could misread it.

A manifest of version 1 has no checksum of itself. It is read where the values, which have one,
confirm what it says: its iteration and its seed."""

_FOLDER = "checkpoints"
_STATES = "states.safetensors"
_MANIFEST = "manifest.json"
_BYTES = 64 << 20  # of a manifest
_TEMPORARY = ".tmp-"
_LOCK = ".lock"
_DIGITS = 9
LARGEST = 10**_DIGITS - 1
"""The largest number of iterations that a checkpoint can be of."""
# The previous checkpoint of an iteration has this suffix while a new one takes its place, because a
# folder cannot be renamed over another. It is whole, so it counts when the new one is not there.
_REPLACED = ".replaced"
_NAME = re.compile(rf"([0-9]{{{_DIGITS}}})({re.escape(_REPLACED)})?")

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The values of all states after `iteration` iterations, as read from `path`."""

    iteration: int
    seed: int
    digest: str
    values: Mapping[str, torch.Tensor]
    extra: Mapping[str, object]
    path: Path


def save(
    folder: Path,
    *,
    iteration: int,
    values: Mapping[str, torch.Tensor],
    seed: int,
    digest: str,
    extra: Mapping[str, object] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint of the run in `folder` and return the checkpoint's own folder.

    The values must not change until this returns. `extra` holds whatever else the run needs to go
    on, as plain JSON. Of this checkpoint and the earlier ones the newest `keep` stay; later ones,
    of a run that was taken up again from an earlier iteration, are left alone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     path = save(Path(run), iteration=7, values={"w": torch.ones(2)}, seed=0, digest="")
    ...     print(path.name, load(path).values["w"])
    000000007 tensor([1., 1.])
    """
    _check_options(iteration, keep)
    parent = folder / _FOLDER
    target = parent / f"{iteration:0{_DIGITS}}"
    remedy = "free space there, or choose a folder that this user may write"
    with _os_errors("cannot save a checkpoint", target, remedy):
        _make_folder(parent)
        with _only_writer(parent):
            # Nobody else is writing, so every temporary is what a dead save left behind.
            for stale in parent.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(stale)
            temporary = parent / f"{_TEMPORARY}{target.name}"
            try:
                _write(temporary, target, iteration, values, seed, digest, extra or {})
                _put_in_place(temporary, target)
            except (OSError, CheckpointError, SafetensorError):
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            with _os_errors("the checkpoint is saved, but not an older one removed", target):
                _remove_older(parent, iteration, keep)
    return target


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of the run in `folder`; None where there is none."""
    found = _checkpoints(folder / _FOLDER)
    return found[max(found)] if found else None


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every part of it; for a run's folder, its newest checkpoint."""
    path = _resolve(path)
    try:
        return _read(path)
    except CheckpointError as error:
        error.remedy = error.remedy or _way_on(path)
        raise


def _read(path: Path) -> Checkpoint:
    """The checkpoint in a folder; where it is damaged, the error has no remedy yet."""
    manifest = _read_manifest(path)
    with _os_errors("cannot read the checkpoint", path):
        values = _read_values(path, manifest)
    if manifest["version"] == 1:
        _confirm(path, manifest, values)
    return Checkpoint(
        iteration=_field(manifest, "iteration", int, path),
        seed=_field(manifest, "seed", int, path),
        digest=_field(manifest, "digest", str, path),
        values=values,
        extra=_field(manifest, "extra", dict, path),
        path=path,
    )


def match(checkpoint: Checkpoint, graph: Graph) -> None:
    """Raise `CheckpointError` unless the checkpoint holds exactly the states of the graph.

    The digests may differ: the same states can be trained by another graph, on other devices.
    """

    def differ(what: str, name: str, expected: str, found: str) -> CheckpointError:
        return CheckpointError(
            what,
            where=str(checkpoint.path),
            blob=name,
            expected=expected,
            found=found,
            remedy="use the net and the solver that it was saved from, or start a run afresh",
        )

    for name in graph.states:
        if name not in checkpoint.values:
            expected = f"a value for {graph.blobs[name]}"
            found = _some_names(checkpoint.values)
            raise differ(f"the checkpoint has no state {name!r}", name, expected, found)
    for name, value in checkpoint.values.items():
        if name not in graph.states:
            what = f"the checkpoint has a state {name!r} that the net has not"
            raise differ(what, name, _some_names(graph.states), _describe(value))
    for name, value in checkpoint.values.items():
        blob = graph.blobs[name]
        if blob.shape is not None and blob.shape != tuple(value.shape):
            what = f"state {name!r} has another shape in the checkpoint"
            raise differ(what, name, str(blob), f"{name}: {_describe(value)}")
        if blob.dtype != dtype_name(value.dtype):
            what = f"state {name!r} has another dtype in the checkpoint"
            raise differ(what, name, str(blob), f"{name}: {_describe(value)}")


def _check_options(iteration: int, keep: int) -> None:
    if not 0 <= iteration <= LARGEST:
        raise ConfigError(
            f"a checkpoint cannot have iteration {iteration}",
            expected=f"0 to {LARGEST}",
            found=str(iteration),
            remedy="count iterations from 0",
        )
    if keep < 1:
        raise ConfigError(
            f"keep is {keep}",
            expected="1 or more checkpoints to keep",
            found=str(keep),
            remedy="pass keep=2, so that a good one stays while the next is written",
        )


@contextmanager
def _os_errors(what: str, path: Path, remedy: str | None = None) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            what,
            where=str(path),
            expected="a folder that can be read and written",
            found=str(error),
            remedy=remedy or "check the permissions and the health of the disk",
        ) from error


@contextmanager
def _only_writer(parent: Path) -> Iterator[None]:
    """Hold the lock of a folder of checkpoints; the system drops it when this process dies."""
    with open(parent / _LOCK, "ab") as lock:
        locked = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                "another save is writing checkpoints here",
                where=str(parent),
                expected="one run for one folder",
                found="a lock held by another save",
                remedy="give each run a folder of its own",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            locked = False
            warnings.warn(
                f"{parent}: no file locks here, so a second run in this folder goes unnoticed",
                stacklevel=2,
            )
        try:
            yield
        finally:
            # A process forked meanwhile holds the file open: closing would not release the lock.
            if locked:
                fcntl.flock(lock, fcntl.LOCK_UN)


def _write(
    temporary: Path,
    target: Path,
    iteration: int,
    values: Mapping[str, torch.Tensor],
    seed: int,
    digest: str,
    extra: Mapping[str, object],
) -> None:
    temporary.mkdir()
    states = temporary / _STATES
    try:
        save_file(_storable(values), states)
    except (KeyError, ValueError) as error:  # a dtype or a layout that the format does not know
        raise CheckpointError(
            "a state cannot be stored",
            where=str(target),
            expected="dense values of a dtype that safetensors knows",
            found=str(error),
            remedy="give the state another dtype",
        ) from error
    head = {
        "version": VERSION,
        "iteration": iteration,
        "seed": seed,
        "digest": digest,
        "purine": purine_version(),
        "torch": str(torch.__version__),
        "file": {"name": _STATES, "bytes": states.stat().st_size, "sha256": _sha256(states)},
    }
    try:
        text = _manifest_text(head, values, extra)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            "extra cannot be stored",
            where=str(target),
            expected="None, bool, int, finite float, str, and lists and dicts of them",
            found=str(error),
            remedy="turn such values into text or numbers first",
        ) from error
    manifest = temporary / _MANIFEST
    manifest.write_text(text, encoding="utf-8")
    states.chmod(manifest.stat().st_mode)  # safetensors makes files that only their owner can read
    for path in (states, manifest, temporary):
        _flush(path)


def _put_in_place(temporary: Path, target: Path) -> None:
    replaced = target.with_name(target.name + _REPLACED)
    if target.exists():
        _remove(replaced)
        os.rename(target, replaced)
    os.rename(temporary, target)
    _flush(target.parent)
    _remove(replaced)


def _remove_older(parent: Path, iteration: int, keep: int) -> None:
    found = _checkpoints(parent)
    not_later = sorted((number for number in found if number <= iteration), reverse=True)
    for number in not_later[keep:]:
        plain = parent / f"{number:0{_DIGITS}}"
        # The replaced one first: else it would take the place of the one just removed.
        _remove(plain.with_name(plain.name + _REPLACED))
        _remove(plain)


def _remove(path: Path) -> None:
    """Delete a checkpoint, its name first, so that half of one is never seen."""
    if path.exists():
        nameless = path.with_name(f"{_TEMPORARY}removed-{path.name}")
        os.rename(path, nameless)
        shutil.rmtree(nameless)


def _checkpoints(parent: Path) -> dict[int, Path]:
    """The whole checkpoints in a folder by iteration."""
    found: dict[int, Path] = {}
    with _os_errors("cannot look for checkpoints", parent):
        if not parent.is_dir():
            return found
        for path in sorted(parent.iterdir()):  # a plain name sorts before its replaced one
            name = _NAME.fullmatch(path.name)
            if name and path.is_dir():
                found.setdefault(int(name[1]), path)
    return found


def _make_folder(path: Path) -> None:
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        _flush(folder.parent)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storable(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values as the file format wants them: in rows, each with memory of its own."""
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in values.items():
        tensor = value.detach().cpu().contiguous()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    return plain


def _manifest_text(
    head: Mapping[str, object], values: Mapping[str, torch.Tensor], extra: Mapping[str, object]
) -> str:
    """JSON with one line for each field and each state."""
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
    return "{\n" + ",\n".join(lines) + "\n}\n"


def checksum(manifest: Mapping[str, object]) -> str:
    """The checksum of all fields of a manifest but the checksum itself, however they are spaced."""
    fields = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _resolve(path: Path) -> Path:
    """The checkpoint meant by a path: itself, or the newest of the run in that folder."""
    with _os_errors("cannot read the checkpoint", path):
        if not path.is_dir():
            raise CheckpointError(
                "there is no such checkpoint",
                where=str(path),
                expected="the folder of a checkpoint or of a run",
                found="a file" if path.exists() else "nothing",
                remedy="check the path",
            )
        if (path / _MANIFEST).exists() or _NAME.fullmatch(path.name):
            return path
        newest = latest(path)
        if newest is None:
            names = sorted(entry.name for entry in path.iterdir())
            raise CheckpointError(
                "there is no checkpoint in this folder",
                where=str(path),
                expected=f"{_FOLDER}/<iteration>/{_MANIFEST}",
                found=_some_names(names) if names else "an empty folder",
                remedy="check the path, or save a checkpoint first",
            )
    return newest


def _read_manifest(path: Path) -> dict[str, object]:
    file = path / _MANIFEST
    try:
        manifest = json.loads(read_bounded(file, _BYTES))
    except FileNotFoundError as error:
        raise _damaged(path, "the manifest is missing", _MANIFEST, "no such file") from error
    except OSError as error:
        raise _damaged(path, "cannot read the manifest", _MANIFEST, str(error)) from error
    except (ValueError, RecursionError) as error:
        what = "the manifest cannot be read"
        raise _damaged(path, what, f"{_MANIFEST} in JSON", str(error)) from error
    if not isinstance(manifest, dict):
        found = type(manifest).__name__
        raise _damaged(path, "the manifest cannot be read", "a JSON object", found)
    version = _field(manifest, "version", int, path)
    if not 1 <= version <= VERSION:
        raise CheckpointError(
            f"the checkpoint has format version {version}",
            where=str(path),
            expected=f"version 1 to {VERSION}",
            found=f"version {version}, written by purine {manifest.get('purine', 'unknown')}",
            remedy="read it with the purine that wrote it",
        )
    if version > 1 or "sha256" in manifest:
        own, found = _field(manifest, "sha256", str, path), checksum(manifest)
        if own != found:
            what = "the manifest is damaged, or was changed"
            raise _damaged(path, what, f"sha256 {own} of its other fields", f"sha256 {found}")
    iteration = _field(manifest, "iteration", int, path)
    if iteration < 0:
        raise _damaged(path, "the iteration is negative", "0 or more", str(iteration))
    name = _NAME.fullmatch(path.name)
    if name and int(name[1]) != iteration:
        what = "the checkpoint is of another iteration than its folder"
        raise _damaged(path, what, f"iteration {int(name[1])}", f"iteration {iteration}")
    return manifest


def _confirm(
    path: Path, manifest: Mapping[str, object], values: Mapping[str, torch.Tensor]
) -> None:
    """Compare a manifest that has no checksum with the states of the same names."""
    for name in (ITERATION, SEED):
        value = values.get(name)
        if value is not None and value.numel() == 1 and value.item() != manifest.get(name):
            what = f"the manifest and the values differ in the {name}"
            raise _damaged(path, what, f"{name} {value.item()}", f"{name} {manifest.get(name)}")


def _read_values(path: Path, manifest: dict[str, object]) -> dict[str, torch.Tensor]:
    promised = dict(_read_state(entry, path) for entry in _field(manifest, "states", list, path))
    facts = _field(manifest, "file", dict, path)
    size, sha256 = _field(facts, "bytes", int, path), _field(facts, "sha256", str, path)
    file = path / _STATES
    if not file.is_file():
        raise _damaged(path, "the values are missing", _STATES, "no such file")
    if file.stat().st_size != size:
        found = f"{file.stat().st_size} bytes"
        raise _damaged(path, f"{_STATES} has another size", f"{size} bytes", found)
    found_sha256 = _sha256(file)
    if found_sha256 != sha256:
        what = f"{_STATES} is damaged"
        raise _damaged(path, what, f"sha256 {sha256}", f"sha256 {found_sha256}")
    try:
        with safe_open(file, framework="pt") as stored:
            # Cloned, because what it gives may be the mapped file, which may be deleted later.
            found_values = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        what = f"{_STATES} cannot be read"
        raise _damaged(path, what, "a safetensors file", str(error)) from error
    for name in dict.fromkeys([*promised, *found_values]):
        expected = promised.get(name, "no such state")
        found = _describe(found_values[name]) if name in found_values else "no such state"
        if expected != found:
            what = f"{_STATES} and the manifest differ in state {name!r}"
            raise _damaged(path, what, expected, found, blob=name)
    return {name: found_values[name] for name in promised}


def _read_state(entry: object, path: Path) -> tuple[str, str]:
    """A state's name, and its value as `_describe` tells it."""
    if not isinstance(entry, dict):
        what = "the manifest lists something that is no state"
        raise _damaged(path, what, "an object with name, shape and dtype", repr(entry))
    shape = _field(entry, "shape", list, path)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise _damaged(path, "a state's shape is wrong", "a list of sizes", repr(shape))
    return _field(entry, "name", str, path), _words(_field(entry, "dtype", str, path), shape)


def _field(manifest: Mapping[str, object], key: str, kind: type[_T], path: Path) -> _T:
    if key not in manifest:
        found = _some_names(manifest)
        raise _damaged(path, f"the manifest has no {key!r}", f"a field {key!r}", found)
    value = manifest[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        what = f"{key!r} in the manifest has the wrong type"
        raise _damaged(path, what, kind.__name__, f"{type(value).__name__}: {value!r}")
    return value


def _damaged(
    path: Path, what: str, expected: str, found: str, *, blob: str | None = None
) -> CheckpointError:
    return CheckpointError(what, where=str(path), blob=blob, expected=expected, found=found)


def _way_on(damaged: Path) -> str:
    """What to do about a damaged checkpoint: to go on from the newest one that is intact."""
    siblings = _checkpoints(damaged.parent) if _NAME.fullmatch(damaged.name) else {}
    later: list[Path] = []
    for number in sorted(siblings, reverse=True):
        path = siblings[number]
        if path == damaged or not _is_intact(path):
            later.append(path)
            continue
        if not later:
            return f"take another one: {path} is intact"
        run = shlex.quote(str(damaged.parent.parent))
        return (
            f"{path} is intact; to go on from it: rm -r {shlex.join(map(str, later))}, "
            f"then purine train --resume --out {run}"
        )
    return "restore the folder from a copy, or start the run afresh"


def _is_intact(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(value: torch.Tensor) -> str:
    return _words(dtype_name(value.dtype), list(value.shape))


def _words(dtype: str, shape: list[int]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def _some_names(names: Mapping[str, object] | list[str]) -> str:
    shown = ", ".join(list(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} names: {shown}{more}" if names else "no names"


def purine_version() -> str:
    """The version of the package as installed."""
    try:
        return importlib.metadata.version("purine")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"
