"""Checkpoints: the values of all states after an iteration, from which a run can resume.

A checkpoint is the folder `<run>/checkpoints/<iteration>/`. `states.safetensors` holds the values
by blob name; several hosts write a file each (`purine.runtime.checkpoint_hosts`). `manifest.json`
describes them; it holds a checksum of each file and one of itself.

Invariant: a checkpoint under its name is complete. It is written under a temporary name, flushed to
disk and then renamed; it is renamed again before it is deleted.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from purine.arguments import at_least
from purine.errors import CheckpointError
from purine.graph import Graph
from purine.graph.names import is_late, of_worker
from purine.lowering.workers import has_workers
from purine.placement.values import shards_of, starts, wholes_of
from purine.registry.aten import dtype_name, dtype_of
from purine.registry.clock import ITERATION, SEED
from purine.registry.fillers import Shard, drawn_as
from purine.runtime import _checkpoint_folder as folders
from purine.runtime import _checkpoint_manifest as manifests
from purine.runtime._checkpoint_folder import FOLDER, LARGEST, os_errors, refusing
from purine.runtime._checkpoint_manifest import (
    MANIFEST,
    STATES,
    File,
    Form,
    Manifest,
    Stored,
    checksum,
    purine_version,
    unusable,
)

__all__ = ["LARGEST", "Checkpoint", "checksum", "latest", "load", "match", "purine_version", "save"]

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs (start, end) along an axis."""
_Opened: TypeAlias = Any  # a file of safetensors, which does not tell the type
FAILED, REMEDY = (
    "cannot save a checkpoint",
    "free space there, or choose a folder that this user may write",
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The values of states after `iteration` iterations, as read from `path`.

    `forms` has the dtype and the shape of all states, `values` those that were asked for.
    """

    iteration: int
    seed: int
    digest: str
    forms: Mapping[str, Form]
    values: Mapping[str, Tensor]
    extra: Mapping[str, object]
    path: Path


def save(
    folder: Path,
    *,
    iteration: int,
    values: Mapping[str, Tensor],
    seed: int,
    digest: str,
    extra: Mapping[str, object] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint of the run in `folder` and return the checkpoint's own folder.

    The values must not change until this returns. `extra` is plain JSON. Of this checkpoint and the
    earlier ones the newest `keep` stay. Later ones are not touched.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as run:
    ...     path = save(Path(run), iteration=7, values={"w": torch.ones(2)}, seed=0, digest="")
    ...     print(path.name, load(path).values["w"])
    000000007 tensor([1., 1.])
    """
    at_least("iteration", iteration, 0, LARGEST)
    at_least("keep", keep, 1)
    target = checkpoint_path(folder, iteration)
    identity = {"iteration": iteration, "seed": seed, "digest": digest}
    states = {name: Stored(manifests.form_of(value)) for name, value in values.items()}
    with os_errors(FAILED, target, REMEDY), folders.only_writer(target.parent):
        temporary = folders.start(target)
        try:
            temporary.mkdir()
            files = [write_values(temporary / STATES, values, target)]
            finish(temporary, target, states, files, identity, extra, keep)
        except (OSError, CheckpointError, SafetensorError):
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """The folder of a checkpoint of the run in `folder`."""
    return folders.path_of(folder / FOLDER, iteration)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of the run in `folder`; None if there is none."""
    paths = folders.checkpoints_in(folder / FOLDER)
    return paths[max(paths)] if paths else None


def load(
    path: Path, *, step: Graph | None = None, names: Collection[str] | None = None
) -> Checkpoint:
    """Read a checkpoint and check the values that are read; for a run's folder, its newest
    checkpoint.

    With a `step`, the checkpoint has to match it, and values are those of its states, cut as they
    are there. With `names`, only these states are read; others take no time.
    """
    path = _resolve(path)
    try:
        return _read(path, step, names)
    except CheckpointError as error:
        error.remedy = error.remedy or _way_on(path)
        raise


def match(checkpoint: Checkpoint, graph: Graph) -> None:
    """Raise `CheckpointError` unless the checkpoint holds exactly the states of the graph.

    The digests may differ: the same states can be trained by another graph, on other devices.
    """

    def differ(what: str, name: str, expected: str, found: str) -> CheckpointError:
        remedy = "use the net and the solver that it was saved from, or start a run afresh"
        return unusable(checkpoint.path, what, expected, found, blob=name, remedy=remedy)

    wholes, forms = wholes_of(graph), checkpoint.forms
    if has_workers(graph) or any(of_worker(name) != name for name in forms):
        # What is not of the net differs from scheme to scheme. It starts anew, or is not needed.
        parameters = {
            s.shared or drawn_as(s.filler) or n for n, s in graph.states.items() if s.trainable
        }
        wholes = {n: blob for n, blob in wholes.items() if n in forms or n in parameters}
        forms = {n: form for n, form in forms.items() if n in wholes}
    forms = {n: form for n, form in forms.items() if n in wholes or not is_late(n)}
    for name, blob in wholes.items():
        if name not in forms:
            expected, found = f"a value for {blob}", manifests.some_names(checkpoint.forms)
            raise differ(f"the checkpoint has no state {name!r}", name, expected, found)
    for name, form in forms.items():
        if name not in wholes:
            what = f"the checkpoint has a state {name!r} that the net has not"
            raise differ(what, name, manifests.some_names(wholes), str(form))
        blob = wholes[name]
        same_shape = blob.shape is None or blob.shape == form.shape
        if not same_shape or blob.dtype != form.dtype:
            part = "dtype" if same_shape else "shape"
            what = f"state {name!r} has another {part} in the checkpoint"
            raise differ(what, name, str(blob), f"{name}: {form}")


def write_values(file: Path, values: Mapping[str, Tensor], target: Path) -> File:
    """Write values to a file of the checkpoint that will be at `target`."""
    what, expected = "a state cannot be stored", "dense values of a dtype that safetensors knows"
    remedy = "give the state another dtype"
    with refusing(what, target, expected, remedy, KeyError, ValueError):
        save_file(_separate(values), file)
    # safetensors makes files that only their owner can read.
    file.chmod(file.parent.stat().st_mode & 0o666)
    folders.flush(file)
    folders.flush(file.parent)
    return manifests.described(file)


def finish(
    temporary: Path,
    target: Path,
    states: Mapping[str, Stored],
    files: Sequence[File],
    identity: Mapping[str, object],
    extra: Mapping[str, object] | None,
    keep: int,
) -> None:
    """Write the manifest, put the checkpoint in place and remove older ones."""
    what = "extra cannot be stored"
    expected = "None, bool, int, finite float, str, and lists and dicts of them"
    remedy = "turn such values into text or numbers first"
    with refusing(what, target, expected, remedy, TypeError, ValueError):
        manifests.write_manifest(temporary, states, files, identity, extra or {})
    folders.flush(temporary / MANIFEST)
    folders.flush(temporary)
    folders.put_in_place(temporary, target)
    with os_errors("the checkpoint is saved, but not an older one removed", target):
        folders.remove_older(target, keep)


def _separate(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values in the form that safetensors needs: contiguous, and no two in the same memory."""
    tensors: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, value in values.items():
        tensor = value.detach().cpu().contiguous()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in memories:
            tensor = tensor.clone()
        memories.add(tensor.untyped_storage().data_ptr())
        tensors[name] = tensor
    return tensors


def _resolve(path: Path) -> Path:
    """The checkpoint for a path: itself, or the newest of the run in that folder."""
    with os_errors("cannot read the checkpoint", path):
        if not path.is_dir():
            what, expected = "there is no such checkpoint", "the folder of a checkpoint or of a run"
            found = "a file" if path.exists() else "nothing"
            raise unusable(path, what, expected, found, remedy="check the path")
        if (path / MANIFEST).exists() or folders.iteration_of(path) is not None:
            return path
        newest = latest(path)
        if newest is None:
            names = sorted(entry.name for entry in path.iterdir())
            what = "there is no checkpoint in this folder"
            found = manifests.some_names(names) if names else "an empty folder"
            remedy = "check the path, or save a checkpoint first"
            raise unusable(path, what, f"{FOLDER}/<iteration>/{MANIFEST}", found, remedy=remedy)
    return newest


def _read(
    path: Path, step: Graph | None = None, names: Collection[str] | None = None
) -> Checkpoint:
    """The checkpoint in a folder; the error for a damaged one has no remedy yet."""
    manifest = manifests.read_manifest(path)
    forms = {name: state.form for name, state in manifest.states.items()}
    identity = (manifest.iteration, manifest.seed, manifest.digest)
    saved = Checkpoint(*identity, forms, {}, manifest.extra, path)
    shards = dict[str, tuple[str, Shard]]()
    if step is not None:
        match(saved, step)
        shards = shards_of(step)
    wanted = (manifest.states if step is None else step.states) if names is None else names
    with os_errors("cannot read the checkpoint", path), _Reader(path, manifest) as reader:
        if names is None:
            reader.open_all()
        sources = {name: shards.get(name, (name, None)) for name in wanted}
        for name, whole in ({} if step is None else starts(step)).items():
            if name in sources and name not in forms:
                sources[name] = (whole, None)
        values = {
            name: reader.read(whole, shard)
            for name, (whole, shard) in sources.items()
            if whole in forms or step is None
        }
    if manifest.version == 1:
        _confirm(path, manifest, values)
    return replace(saved, values=values)


class _Reader:
    """Reads values of a checkpoint. A file is checked as a whole when it is first needed."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path, self._manifest = path, manifest
        self._opened: dict[str, _Opened] = {}
        self._closing = ExitStack()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def open_all(self) -> None:
        """Check all files, even those of which nothing is read."""
        for name in self._manifest.files:
            self._open(name)

    def read(self, name: str, shard: Shard | None) -> Tensor:
        """The value of a state, or of a shard of it."""
        state = self._manifest.states[name]
        (first, *others) = state.pieces
        if shard is None and not others:
            # Cloned, since a tensor may be the mapped file, which may be deleted later.
            mapped: Tensor = self._open(first.file).get_tensor(name)
            return mapped.clone()
        if shard is not None and any(
            piece.spans is not None and piece.axis != shard.axis for piece in state.pieces
        ):
            return shard.take(self.read(name, None))
        shape = state.form.shape
        axis = first.axis if shard is None else shard.axis
        wanted = ((0, shape[axis]),) if shard is None else shard.spans
        size = sum(high - low for low, high in wanted)
        value = torch.empty(
            (*shape[:axis], size, *shape[axis + 1 :]), dtype=dtype_of(state.form.dtype)
        )
        for piece in state.pieces:
            spans = ((0, shape[axis]),) if piece.spans is None else piece.spans
            for start, stored, length in _overlaps(wanted, spans):
                part = (*[slice(None)] * axis, slice(stored, stored + length))
                source = self._open(piece.file).get_slice(name)[part]
                value.narrow(axis, start, length).copy_(source)
        return value

    def _open(self, name: str) -> _Opened:
        if name not in self._opened:
            self._check(name)
            try:
                file = safe_open(self._path / name, framework="pt")
                self._opened[name] = self._closing.enter_context(file)
            except SafetensorError as error:
                what = f"{name} cannot be read"
                raise unusable(self._path, what, "a safetensors file", str(error)) from error
            self._check_forms(name)
        return self._opened[name]

    def _check(self, name: str) -> None:
        path, file, stated = self._path, self._path / name, self._manifest.files[name]
        if not file.is_file():
            raise unusable(path, "the values are missing", name, "no such file")
        size = file.stat().st_size
        if size != stated.bytes:
            expected, found = f"{stated.bytes} bytes", f"{size} bytes"
            raise unusable(path, f"{name} has another size", expected, found)
        expected, found = f"sha256 {stated.sha256}", f"sha256 {manifests.sha256_of(file)}"
        if expected != found:
            raise unusable(path, f"{name} is damaged", expected, found)

    def _check_forms(self, file: str) -> None:
        """Refuse a file whose values are not those that the manifest lists."""
        opened = self._opened[file]
        stated = {
            name: str(piece.form(state.form))
            for name, state in self._manifest.states.items()
            for piece in state.pieces
            if piece.file == file
        }
        stored = {name: str(_form_in(opened, name)) for name in opened.keys()}  # noqa: SIM118
        for name in dict.fromkeys([*stated, *stored]):
            expected, found = (known.get(name, "no such state") for known in (stated, stored))
            if expected != found:
                what = f"{file} and the manifest differ in state {name!r}"
                raise unusable(self._path, what, expected, found, blob=name)


def _form_in(opened: _Opened, name: str) -> Form:
    """The form of a value in a safetensors file; the value is not read."""
    shape = tuple(opened.get_slice(name).get_shape())
    some = opened.get_slice(name)[:0] if shape else opened.get_tensor(name)
    return Form(dtype_name(some.dtype), shape)


def _overlaps(wanted: Spans, stored: Spans) -> Iterator[tuple[int, int, int]]:
    """The intersection of two lists of spans, as (start in one, start in the other, length)."""
    first = 0
    for low, high in wanted:
        second = 0
        for begin, end in stored:
            start, stop = max(low, begin), min(high, end)
            if start < stop:
                yield first + start - low, second + start - begin, stop - start
            second += end - begin
        first += high - low


def _confirm(path: Path, manifest: manifests.Manifest, values: Mapping[str, Tensor]) -> None:
    """Compare a manifest that has no checksum with the states of the same names."""
    for name, stated in ((ITERATION, manifest.iteration), (SEED, manifest.seed)):
        value = values.get(name)
        if value is not None and value.numel() == 1 and value.item() != stated:
            what = f"the manifest and the values differ in the {name}"
            raise unusable(path, what, f"{name} {value.item()}", f"{name} {stated}")


def _way_on(path: Path) -> str:
    """The remedy for a damaged checkpoint: resume from the newest one that is intact."""
    siblings = folders.checkpoints_in(path.parent) if folders.iteration_of(path) is not None else {}
    unusable: list[Path] = []
    for number in sorted(siblings, reverse=True):
        sibling = siblings[number]
        if sibling == path or not _is_intact(sibling):
            unusable.append(sibling)
            continue
        if not unusable:
            return f"take another one: {sibling} is intact"
        run = shlex.quote(str(path.parent.parent))
        return (
            f"{sibling} is intact; to continue from it: rm -r {shlex.join(map(str, unusable))}, "
            f"then purine train --resume --out {run}"
        )
    return "restore the folder from a copy, or start the run afresh"


def _is_intact(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True
