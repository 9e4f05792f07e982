"""Checkpoints: the values of all states after an iteration, from which a run can resume.

A checkpoint is the folder `<run>/checkpoints/<iteration>/`. `states.safetensors` holds the values
by blob name. `manifest.json` describes them; it holds a checksum of the values and one of itself.

Invariant: a checkpoint that can be seen is complete. It is written under a temporary name, flushed
to disk and then renamed; it loses its name before it is deleted.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from purine.arguments import at_least
from purine.errors import CheckpointError
from purine.graph import Graph
from purine.registry.aten import dtype_name
from purine.registry.clock import ITERATION, SEED
from purine.runtime import _checkpoint_folder as folders
from purine.runtime import _checkpoint_manifest as manifests
from purine.runtime._checkpoint_folder import FOLDER, LARGEST, os_errors, refusing
from purine.runtime._checkpoint_manifest import MANIFEST, STATES, checksum, purine_version, unusable

__all__ = ["LARGEST", "Checkpoint", "checksum", "latest", "load", "match", "purine_version", "save"]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The values of all states after `iteration` iterations, as read from `path`."""

    iteration: int
    seed: int
    digest: str
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
    parent = folder / FOLDER
    target = folders.path_of(parent, iteration)
    identity = {"iteration": iteration, "seed": seed, "digest": digest}
    remedy = "free space there, or choose a folder that this user may write"
    with os_errors("cannot save a checkpoint", target, remedy), folders.only_writer(parent):
        temporary = folders.start(target)
        try:
            temporary.mkdir()
            with _refusing_values(target):
                save_file(_separate(values), temporary / STATES)
            with _refusing_extra(target):
                manifests.write_manifest(temporary, values, identity, extra or {})
            # safetensors makes files that only their owner can read.
            (temporary / STATES).chmod((temporary / MANIFEST).stat().st_mode)
            for path in (temporary / STATES, temporary / MANIFEST, temporary):
                folders.flush(path)
            folders.put_in_place(temporary, target)
        except (OSError, CheckpointError, SafetensorError):
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        with os_errors("the checkpoint is saved, but not an older one removed", target):
            folders.remove_older(parent, iteration, keep)
    return target


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """The folder of a checkpoint of the run in `folder`."""
    return folders.path_of(folder / FOLDER, iteration)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of the run in `folder`; None if there is none."""
    paths = folders.checkpoints_in(folder / FOLDER)
    return paths[max(paths)] if paths else None


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every part of it; for a run's folder, its newest checkpoint."""
    path = _resolve(path)
    try:
        return _read(path)
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

    for name in graph.states:
        if name not in checkpoint.values:
            expected = f"a value for {graph.blobs[name]}"
            found = manifests.some_names(checkpoint.values)
            raise differ(f"the checkpoint has no state {name!r}", name, expected, found)
    for name, value in checkpoint.values.items():
        form = manifests.describe(value)
        if name not in graph.states:
            what = f"the checkpoint has a state {name!r} that the net has not"
            raise differ(what, name, manifests.some_names(graph.states), form)
        blob = graph.blobs[name]
        same_shape = blob.shape is None or blob.shape == tuple(value.shape)
        if not same_shape or blob.dtype != dtype_name(value.dtype):
            part = "dtype" if same_shape else "shape"
            what = f"state {name!r} has another {part} in the checkpoint"
            raise differ(what, name, str(blob), f"{name}: {form}")


def _separate(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values as safetensors wants them: contiguous, and no two in the same memory."""
    tensors: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, value in values.items():
        tensor = value.detach().cpu().contiguous()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in memories:
            tensor = tensor.clone()
        memories.add(tensor.untyped_storage().data_ptr())
        tensors[name] = tensor
    return tensors


def _refusing_values(target: Path) -> AbstractContextManager[None]:
    """Turn errors of safetensors about a dtype or a layout into `CheckpointError`."""
    expected = "dense values of a dtype that safetensors knows"
    remedy = "give the state another dtype"
    return refusing("a state cannot be stored", target, expected, remedy, KeyError, ValueError)


def _refusing_extra(target: Path) -> AbstractContextManager[None]:
    """Turn errors of JSON about `extra` into `CheckpointError`."""
    expected = "None, bool, int, finite float, str, and lists and dicts of them"
    remedy = "turn such values into text or numbers first"
    return refusing("extra cannot be stored", target, expected, remedy, TypeError, ValueError)


def _resolve(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the newest of the run in that folder."""
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
            expected = f"{FOLDER}/<iteration>/{MANIFEST}"
            found = manifests.some_names(names) if names else "an empty folder"
            remedy = "check the path, or save a checkpoint first"
            raise unusable(path, what, expected, found, remedy=remedy)
    return newest


def _read(path: Path) -> Checkpoint:
    """The checkpoint in a folder; the error for a damaged one has no remedy yet."""
    manifest = manifests.read_manifest(path)
    with os_errors("cannot read the checkpoint", path):
        values = _read_values(path, manifest)
    if manifest.version == 1:
        _confirm(path, manifest, values)
    return Checkpoint(
        manifest.iteration, manifest.seed, manifest.digest, values, manifest.extra, path
    )


def _read_values(path: Path, manifest: manifests.Manifest) -> dict[str, Tensor]:
    file = path / STATES
    if not file.is_file():
        raise unusable(path, "the values are missing", STATES, "no such file")
    size = file.stat().st_size
    if size != manifest.bytes:
        expected, found = f"{manifest.bytes} bytes", f"{size} bytes"
        raise unusable(path, f"{STATES} has another size", expected, found)
    expected, found = f"sha256 {manifest.sha256}", f"sha256 {manifests.sha256_of(file)}"
    if expected != found:
        raise unusable(path, f"{STATES} is damaged", expected, found)
    try:
        with safe_open(file, framework="pt") as stored:
            # Cloned, since a tensor may be the mapped file, which may be deleted later.
            values = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        what = f"{STATES} cannot be read"
        raise unusable(path, what, "a safetensors file", str(error)) from error
    forms = {name: manifests.describe(value) for name, value in values.items()}
    for name in dict.fromkeys([*manifest.forms, *forms]):
        expected, found = (known.get(name, "no such state") for known in (manifest.forms, forms))
        if expected != found:
            what = f"{STATES} and the manifest differ in state {name!r}"
            raise unusable(path, what, expected, found, blob=name)
    return {name: values[name] for name in manifest.forms}


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
            f"{sibling} is intact; to go on from it: rm -r {shlex.join(map(str, unusable))}, "
            f"then purine train --resume --out {run}"
        )
    return "restore the folder from a copy, or start the run afresh"


def _is_intact(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True
