"""Checkpoints come back as they were saved, survive crashes, and report every kind of damage."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import resource
import shutil
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from purine.errors import CheckpointError, ConfigError
from purine.graph import Builder, Graph
from purine.runtime import checkpoint

Change = Callable[[dict[str, Any]], object]


def save(run: Path, iteration: int, **options: Any) -> Path:
    settings: dict[str, Any] = {
        "values": {"w": torch.full((2, 3), float(iteration)), "n": torch.tensor(iteration)},
        "seed": 5,
        "digest": "abc",
    }
    return checkpoint.save(run, iteration=iteration, **(settings | options))


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != ".lock")


def edit_manifest(path: Path, change: Change, *, honest: bool = True) -> None:
    """Change a manifest, with a checksum that is `honest` about the change or without a new one."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    if honest:
        manifest["sha256"] = checkpoint.checksum(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def failure(path: Path) -> CheckpointError:
    """The error of loading `path`, which must be told in full."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    error = caught.value
    assert error.where is not None
    assert str(path) in error.where
    assert error.expected
    assert error.found
    assert error.remedy
    return error


# What is saved comes back.


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    path = save(tmp_path, 120, extra={"data": "fashion", "epochs": [1, 2], "note": {"é": None}})
    assert path == tmp_path / "checkpoints" / "000000120"
    assert checkpoint.latest(tmp_path) == path
    loaded = checkpoint.load(path)
    assert (loaded.iteration, loaded.seed, loaded.digest) == (120, 5, "abc")
    assert loaded.extra == {"data": "fashion", "epochs": [1, 2], "note": {"é": None}}
    assert loaded.path == path
    assert list(loaded.values) == ["w", "n"]
    assert torch.equal(loaded.values["w"], torch.full((2, 3), 120.0))
    assert loaded.values["n"].item() == 120


def test_every_sort_of_value_is_kept(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    image = torch.arange(120.0).reshape(2, 3, 4, 5)
    values = {
        "scalar": torch.tensor(3.5),
        "int64": torch.tensor([2**62, -1]),
        "bool": torch.tensor([True, False]),
        "bfloat16": torch.tensor([1.0, 2.5], dtype=torch.bfloat16),
        "float64": torch.tensor([0.1], dtype=torch.float64),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "empty": torch.empty(0, 3),
        "empty too": torch.empty(0),
        "shared": base,
        "shared again": base,
        "overlapping view": base[4:9],
        "transposed": base.reshape(4, 6).t(),
        "strided": base[::2],
        "expanded": torch.tensor([7.0]).expand(4),
        "channels last": image.to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    loaded = checkpoint.load(save(tmp_path, 1, values=values)).values
    assert list(loaded) == list(values)
    for name, value in values.items():
        assert loaded[name].dtype == value.dtype, name
        assert loaded[name].shape == value.shape, name
        torch.testing.assert_close(loaded[name], value.detach(), rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_may_hold_no_state(tmp_path: Path) -> None:
    assert checkpoint.load(save(tmp_path, 0, values={})).values == {}


def test_loaded_values_outlive_the_file(tmp_path: Path) -> None:
    loaded = checkpoint.load(save(tmp_path, 4))
    shutil.rmtree(loaded.path)
    loaded.values["w"].add_(1)
    assert torch.equal(loaded.values["w"], torch.full((2, 3), 5.0))


def test_the_manifest_is_readable(tmp_path: Path) -> None:
    lines = (save(tmp_path, 3) / "manifest.json").read_text().splitlines()
    assert '    {"name": "w", "shape": [2, 3], "dtype": "float32"},' in lines
    assert '  "iteration": 3,' in lines


def test_the_files_have_the_usual_permissions(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    usual = tmp_path / "usual"
    usual.touch()
    for file in path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode), file.name


def test_a_folder_of_a_run_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert checkpoint.load(tmp_path).iteration == 2


# Which checkpoints are kept.


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for iteration in (1, 20, 300, 4000):
        save(tmp_path, iteration, keep=2)
    assert names(tmp_path) == ["000000300", "000004000"]
    save(tmp_path, 4001, keep=1)
    assert names(tmp_path) == ["000004001"]


def test_going_back_never_removes_what_was_just_saved(tmp_path: Path) -> None:
    for iteration in (100, 200, 50):
        save(tmp_path, iteration, keep=1)
    assert "000000050" in names(tmp_path)


def test_an_iteration_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 9, seed=1)
    path = save(tmp_path, 9, seed=2)
    assert checkpoint.load(path).seed == 2
    assert names(tmp_path) == ["000000009"]


def test_what_dead_saves_left_is_removed_and_other_files_stay(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / ".tmp-000000002").mkdir()
    (tmp_path / "checkpoints" / ".tmp-000000002" / "states.safetensors").write_bytes(b"half")
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    save(tmp_path, 3)
    assert names(tmp_path) == ["000000001", "000000003", "notes.txt"]


def test_latest_without_checkpoints_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "checkpoints" / ".tmp-000000002").mkdir(parents=True)
    (tmp_path / "checkpoints" / "12").mkdir()
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("options", [{"iteration": -1}, {"iteration": 10**9}, {"keep": 0}])
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    settings: dict[str, Any] = {"iteration": 1, "values": {}, "seed": 0, "digest": ""}
    with pytest.raises(ConfigError):
        checkpoint.save(tmp_path, **(settings | options))


# Crashes and failures while saving.


class Crash(BaseException):
    """The process dies here: nothing that handles errors may see it."""


STEPS = (
    (os, "fsync"),
    (os, "rename"),
    (os, "open"),
    (os, "close"),
    (os, "mkdir"),
    (Path, "write_text"),
    (Path, "chmod"),
    (shutil, "rmtree"),
    (checkpoint, "save_file"),
)


def fail_at(
    patch: pytest.MonkeyPatch, step: int, error: BaseException, *, after: bool
) -> Callable[[], bool]:
    """Let the `step`-th system call of a save fail, before or after it took effect.

    An `rmtree` that fails afterwards has deleted only a part. The result tells whether the save
    came as far as that step.
    """
    count = 0

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count != step:
                return call(*arguments, **options)
            if after and name == "rmtree":
                (Path(arguments[0]) / "manifest.json").unlink(missing_ok=True)
            elif after:
                call(*arguments, **options)
            raise error

        return counted

    for owner, name in STEPS:
        patch.setattr(owner, name, wrap(name, getattr(owner, name)))
    return lambda: count >= step


def whole(run: Path) -> tuple[int, int] | None:
    """Iteration and seed of the newest checkpoint, after a look at all that can be seen."""
    for path in (run / "checkpoints").glob("[0-9]*"):
        seen = checkpoint.load(path)
        assert seen.values["n"].item() == seen.iteration
    newest = checkpoint.latest(run)
    if newest is None:
        return None
    loaded = checkpoint.load(newest)
    return loaded.iteration, loaded.seed


@pytest.mark.parametrize("kind", [Crash, OSError])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("existing", "new"), [((), 10), ((10,), 20), ((10, 20), 30), ((10,), 10), ((10, 20), 20)]
)
def test_a_crash_at_any_step_leaves_a_whole_checkpoint(
    tmp_path: Path,
    existing: tuple[int, ...],
    new: int,
    after: bool,
    kind: type[BaseException],
) -> None:
    old = (existing[-1], 1) if existing else None
    outcomes = set()
    for step in range(1, 200):
        run = tmp_path / str(step)
        for iteration in existing:
            save(run, iteration, seed=1)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Crash, CheckpointError):
            error = kind(errno.ENOSPC, "No space left on device")
            reached = fail_at(patch, step, error, after=after)
            save(run, new, seed=2)
        outcome = whole(run)
        assert outcome in (old, (new, 2))
        outcomes.add(outcome)
        save(run, new, seed=3)  # the next save works and tidies up
        assert whole(run) == (new, 3)
        assert names(run) == [f"{i:09}" for i in sorted({*existing, new})[-2:]]
        if not reached():
            assert outcome == (new, 2)
            assert outcomes == {old, (new, 2)}
            return
    pytest.fail("a save never ended")


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot save a checkpoint"):
            save(tmp_path, 2, values={"w": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["000000001"]
    assert checkpoint.load(tmp_path).iteration == 1


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path / "file", 1)
    assert str(tmp_path / "file") in str(caught.value)
    assert caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_missing_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="cannot save"):
        save(tmp_path, 1)


def test_two_saves_at_once_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with open(tmp_path / "checkpoints" / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another save"):
            save(tmp_path, 2)
    save(tmp_path, 2)
    assert checkpoint.load(tmp_path).iteration == 2


def test_a_file_system_without_locks_warns_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="no file locks"):
        save(tmp_path, 1)
    assert checkpoint.load(tmp_path).iteration == 1


@pytest.mark.parametrize("extra", [{"a": {1, 2}}, {"a": float("nan")}, {"a": Path("x")}])
def test_extra_that_is_no_json_is_refused(tmp_path: Path, extra: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="extra cannot be stored"):
        save(tmp_path, 1, extra=extra)
    assert names(tmp_path) == []


def test_a_value_the_format_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be stored"):
        save(tmp_path, 1, values={"z": torch.zeros(2, dtype=torch.complex128)})
    assert names(tmp_path) == []


# Damage.


def test_missing_and_empty_folders_are_reported(tmp_path: Path) -> None:
    assert failure(tmp_path / "nowhere").found == "nothing"
    (tmp_path / "file").touch()
    assert failure(tmp_path / "file").found == "a file"
    (tmp_path / "empty").mkdir()
    assert failure(tmp_path / "empty").found == "an empty folder"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "no checkpoint in this folder" in failure(tmp_path / "run").what


def test_a_missing_manifest_is_reported_with_the_earlier_checkpoint(tmp_path: Path) -> None:
    first, path = save(tmp_path, 1), save(tmp_path, 2)
    (path / "manifest.json").unlink()
    error = failure(path)
    assert "manifest is missing" in error.what
    assert error.remedy == (
        f"{first} is intact; to continue from it: rm -r {path}, "
        f"then purine train --resume --out {tmp_path}"
    )
    later = save(tmp_path, 3)
    assert failure(path).remedy == f"take another one: {later} is intact"


def test_the_way_on_passes_over_all_that_is_damaged(tmp_path: Path) -> None:
    paths = [save(tmp_path, number, keep=9) for number in (1, 2, 3)]
    for path in paths[1:]:
        (path / "states.safetensors").write_bytes(b"")
    remedy = failure(tmp_path).remedy
    assert remedy is not None
    assert f"{paths[0]} is intact" in remedy
    assert f"rm -r {paths[2]} {paths[1]}, then" in remedy
    (paths[0] / "manifest.json").unlink()
    assert failure(tmp_path).remedy == "restore the folder from a copy, or start the run afresh"


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", b"\xff\xfe", "[" * 100_000])
def test_a_manifest_that_cannot_be_read_is_reported(tmp_path: Path, text: str | bytes) -> None:
    path = save(tmp_path, 1)
    (path / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert "manifest cannot be read" in failure(path).what


def test_another_version_is_reported(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for version in (0, 4):
        edit_manifest(path, lambda manifest: manifest.update(version=version))  # noqa: B023
        error = failure(path)
        assert error.expected == "version 1 to 3"
        assert f"version {version}" in str(error.found)


@pytest.mark.parametrize("key", ["iteration", "seed", "digest", "purine", "extra", "sha256"])
def test_a_changed_manifest_is_noticed(tmp_path: Path, key: str) -> None:
    path = save(tmp_path, 1, extra={"seconds": 1.5})
    edit_manifest(path, lambda manifest: manifest.update({key: {}}), honest=False)
    error = failure(path)
    assert "the manifest is damaged, or was changed" in error.what or "wrong type" in error.what


def test_a_manifest_may_be_spaced_otherwise(tmp_path: Path) -> None:
    path = save(tmp_path, 1, extra={"seconds": 1.5, "näme": [1e-30, None]})
    edit_manifest(path, lambda manifest: None, honest=False)
    assert checkpoint.load(path).extra["seconds"] == 1.5


def test_a_checkpoint_in_the_folder_of_another_iteration_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    other = shutil.copytree(path, path.with_name("000000020"))
    error = failure(other)
    assert (error.expected, error.found) == ("iteration 20", "iteration 10")
    assert checkpoint.load(shutil.copytree(path, tmp_path / "best")).iteration == 10


def older(manifest: dict[str, Any]) -> None:
    """Turn a manifest into one of version 1."""
    del manifest["sha256"]
    manifest["version"] = 1


def test_the_version_without_a_checksum_is_read_where_the_values_confirm_it(tmp_path: Path) -> None:
    values = {"seed": torch.tensor(5), "iteration": torch.tensor(3)}
    path = save(tmp_path, 3, values=values)
    edit_manifest(path, older, honest=False)
    assert checkpoint.load(path).seed == 5
    edit_manifest(path, lambda manifest: manifest.update(seed=6), honest=False)
    error = failure(path)
    assert (error.expected, error.found) == ("seed 5", "seed 6")
    edit_manifest(path, lambda manifest: manifest.update(seed=5, iteration=2), honest=False)
    assert "another iteration than its folder" in failure(path).what


@pytest.mark.parametrize(
    "key", ["version", "iteration", "seed", "digest", "file", "states", "extra"]
)
def test_missing_and_mistyped_fields_are_named(tmp_path: Path, key: str) -> None:
    path = save(tmp_path, 1)
    edit_manifest(path, lambda manifest: manifest.pop(key))
    assert repr(key) in failure(path).what
    edit_manifest(path, lambda manifest: manifest.update({key: True}))
    assert "bool" in str(failure(path).found)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(iteration=-1),
        lambda manifest: manifest["states"].append("w"),
        lambda manifest: manifest["states"][0].update(shape=[2, "3"]),
        lambda manifest: manifest["states"][0].update(shape=[2, -3]),
        lambda manifest: manifest["states"][0].pop("name"),
        lambda manifest: manifest["file"].pop("sha256"),
        lambda manifest: manifest["file"].update(bytes="many"),
    ],
)
def test_wrong_contents_of_the_manifest_are_reported(tmp_path: Path, change: Change) -> None:
    path = save(tmp_path, 1)
    edit_manifest(path, change)
    failure(path)


@pytest.mark.parametrize(
    ("change", "blob"),
    [
        (lambda manifest: manifest["states"][0].update(name="v"), "v"),
        (lambda manifest: manifest["states"][0].update(shape=[3, 2]), "w"),
        (lambda manifest: manifest["states"][0].update(dtype="int32"), "w"),
        (lambda manifest: manifest["states"].pop(), "n"),
    ],
)
def test_values_other_than_promised_are_named(tmp_path: Path, change: Change, blob: str) -> None:
    path = save(tmp_path, 1)
    edit_manifest(path, change)
    assert failure(path).blob == blob


def test_damaged_values_are_found(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    file = path / "states.safetensors"
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert "damaged" in failure(path).what
    file.write_bytes(good[:-1])
    assert "another size" in failure(path).what
    file.unlink()
    assert "missing" in failure(path).what


def test_a_file_of_another_format_is_reported(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    file = path / "states.safetensors"
    file.write_bytes(b"not safetensors")
    edit_manifest(path, lambda manifest: manifest.update(file=checkpoint_facts(file)))
    assert "cannot be read" in failure(path).what
    save_file({"other": torch.zeros(1)}, file)
    edit_manifest(path, lambda manifest: manifest.update(file=checkpoint_facts(file)))
    assert failure(path).blob == "w"


def checkpoint_facts(file: Path) -> dict[str, object]:
    data = file.read_bytes()
    return {"name": file.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


# Checkpoint and graph.


def graph(**states: tuple[tuple[int, ...] | None, str]) -> Graph:
    builder = Builder()
    for name, (shape, dtype) in states.items():
        builder.state(builder.blob(name, shape, dtype))
    builder.blob("data", (2, 2))
    return builder.graph()


def test_a_checkpoint_matches_its_graph_whatever_the_digest(tmp_path: Path) -> None:
    loaded = checkpoint.load(save(tmp_path, 1))
    checkpoint.match(loaded, graph(n=((), "int64"), w=((2, 3), "float32")))
    checkpoint.match(loaded, graph(n=((), "int64"), w=(None, "float32")))


@pytest.mark.parametrize(
    ("net", "blob", "expected", "found"),
    [
        (
            graph(n=((), "int64"), w=((2, 3), "float32"), v=((1,), "float32")),
            "v",
            "a value for v: float32 1",
            "2 names: w, n",
        ),
        (graph(w=((2, 3), "float32")), "n", "1 names: w", "int64 scalar"),
        (
            graph(n=((), "int64"), w=((3, 2), "float32")),
            "w",
            "w: float32 3x2",
            "w: float32 2x3",
        ),
        (
            graph(n=((), "int32"), w=((2, 3), "float32")),
            "n",
            "n: int32 scalar",
            "n: int64 scalar",
        ),
    ],
    ids=["missing", "unexpected", "shape", "dtype"],
)
def test_a_checkpoint_of_another_net_is_refused(
    tmp_path: Path, net: Graph, blob: str, expected: str, found: str
) -> None:
    loaded = checkpoint.load(save(tmp_path, 1))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.match(loaded, net)
    error = caught.value
    assert (error.blob, error.expected, error.found) == (blob, expected, found)
    assert error.where == str(loaded.path)
    assert error.remedy
    assert repr(blob) in error.what


def test_saving_and_loading_are_quiet(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.load(save(tmp_path, 1, values={"b": torch.zeros(2, dtype=torch.bool)}))
