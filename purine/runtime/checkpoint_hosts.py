"""Checkpoints of several hosts: each writes the states that it owns.

All hosts write at the same time, each a file of its own, into one temporary folder that the first
has created. The first then writes the manifest, which lists the files, and renames the folder. A
host that fails or dies before that leaves no checkpoint, and the error is raised on all hosts. The
folder must be on a file system that all hosts share.

A state that is cut over hosts is stored in pieces: each file holds the parts that its host owns, in
one value, and the manifest has their indices.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from purine.arguments import at_least
from purine.errors import PurineError
from purine.graph import Graph
from purine.placement.values import merged_spans, shards_of, wholes_of
from purine.runtime import _checkpoint_folder as folders
from purine.runtime import _checkpoint_manifest as manifests
from purine.runtime._checkpoint_folder import LARGEST, os_errors
from purine.runtime._checkpoint_manifest import File, Form, Piece, Stored, unusable
from purine.runtime.checkpoint import FAILED, REMEDY, checkpoint_path, finish, write_values
from purine.transports.world import World

__all__ = ["save"]

_OP = "save"


def save(
    folder: Path,
    *,
    world: World,
    step: Graph,
    iteration: int,
    values: Mapping[str, Tensor],
    seed: int,
    extra: Mapping[str, object] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint together with the other hosts; returns the checkpoint's own folder.

    All hosts call this after the same iteration. `values` are the states of this host. See
    `purine.runtime.checkpoint.save` for the rest.
    """
    at_least("iteration", iteration, 0, LARGEST)
    at_least("keep", keep, 1)
    world.compare({"iteration to save": str(iteration)})
    target = checkpoint_path(folder, iteration)
    states = _stored(step, world.hosts)
    with ExitStack() as lock:
        begun = world.jointly(partial(_begin, target, lock, first=world.first), op=_OP)
        temporary = Path(begun[world.hosts[0]])
        try:
            own = _own_values(step, world.host, values)
            written = world.jointly(partial(_write, temporary, world, own), op=_OP)
            if world.first:
                files = [File(**json.loads(written[host])) for host in world.hosts]
                identity = {"iteration": iteration, "seed": seed, "digest": step.digest}
                done = partial(finish, temporary, target, states, files, identity, extra, keep)
            checked = partial(_finish, temporary, target, files, done) if world.first else str
            world.jointly(checked, op=_OP)
        except PurineError:
            if world.first:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


def _begin(target: Path, lock: ExitStack, *, first: bool) -> str:
    """On the first host: create a temporary folder with a new name."""
    if not first:
        return ""
    with os_errors(FAILED, target, REMEDY):
        lock.enter_context(folders.only_writer(target.parent))
        temporary = folders.start(target, f"-{secrets.token_hex(8)}")
        temporary.mkdir()
        return str(temporary.resolve())


def _write(temporary: Path, world: World, values: Mapping[str, Tensor]) -> str:
    """Write the values of this host; returns the facts about its file."""
    if not temporary.is_dir():
        what = "this host does not see the folder of the checkpoint"
        expected = f"the folder that {world.hosts[0]} made, on a file system that all hosts share"
        remedy = "let all hosts share the file system of the run's folder"
        raise unusable(temporary, what, expected, "no such folder", remedy=remedy)
    file = temporary / manifests.file_name(world.hosts.index(world.host))
    with os_errors(FAILED, temporary, REMEDY):
        return json.dumps(dataclasses.asdict(write_values(file, values, temporary)))


def _finish(temporary: Path, target: Path, files: Sequence[File], done: partial[None]) -> str:
    """On the first host: check that all files are there, and complete the checkpoint."""
    with os_errors(FAILED, target, REMEDY):
        for file in files:
            size = (temporary / file.name).stat().st_size
            if size != file.bytes:
                what = f"{file.name} has another size here than where it was written"
                raise unusable(target, what, f"{file.bytes} bytes", f"{size} bytes", remedy=REMEDY)
        done()
    return ""


def _stored(step: Graph, hosts: Sequence[str]) -> dict[str, Stored]:
    """How the states of a step are stored: each in the file of its owner, or in pieces."""
    names = {host: manifests.file_name(number) for number, host in enumerate(hosts)}
    shards, pieces = shards_of(step), dict[str, dict[str, Piece]]()
    for name in step.states:
        file = names[step.blobs[name].location.host]
        if name not in shards:
            pieces[name] = {file: Piece(file)}
            continue
        whole, shard = shards[name]
        known = pieces.setdefault(whole, {})
        spans = known[file].spans or () if file in known else ()
        known[file] = Piece(file, shard.axis, merged_spans([*spans, *shard.spans]))
    states: dict[str, Stored] = {}
    for name, blob in wholes_of(step).items():
        (first, *others) = parts = tuple(pieces[name].values())
        assert blob.shape is not None
        assert first.spans is None or manifests.cover(parts, blob.shape[first.axis]), name
        parts = parts if others else (Piece(first.file),)
        states[name] = Stored(Form(blob.dtype, blob.shape), parts)
    return states


def _own_values(step: Graph, host: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values that a host stores: its own states, with its shards of a state joined in order."""
    shards, own = shards_of(step), dict[str, Tensor]()
    parts: dict[str, list[tuple[int, int, Tensor]]] = {}
    for name in step.states:
        if step.blobs[name].location.host != host:
            continue
        if name not in shards:
            own[name] = values[name]
            continue
        whole, shard = shards[name]
        start = 0
        for low, high in shard.spans:
            part = values[name].narrow(shard.axis, start, high - low).cpu()
            parts.setdefault(whole, []).append((low, shard.axis, part))
            start += high - low
    for whole, pieces in parts.items():
        pieces.sort(key=lambda item: item[0])
        own[whole] = torch.cat([part for *_, part in pieces], pieces[0][1])
    return own
