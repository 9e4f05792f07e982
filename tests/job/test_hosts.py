"""Jobs on several hosts: what is compared before anything is trained, and the folder they share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from purine.errors import ConfigError
from purine.job import JobPlan, make_plan, merge
from purine.job.folder import FollowerFolder, RunFolder
from purine.job.hosts import folder_on
from purine.transports.inproc import InprocWorld
from tests.runtime.test_hosts import on_hosts

JOB = {"net": "mlp", "iters": 4, "batch": 8, "devices": "host0-1:cpu:0", "share_cores": True}


@cache
def plan(**options: object) -> JobPlan:
    return make_plan(merge(JOB, options))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"save_every": 2}, "save_every"),
        ({"lr": 0.5}, "lr"),
        ({"iters": 5}, "iters"),
        ({"prefetch": 1}, "prefetch"),
        ({"compress": "bf16"}, "compress"),
    ],
)
def test_options_that_differ_are_named(
    options: dict[str, object], name: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    plans = {"host0": plan(out=out), "host1": plan(**options, out=out)}

    def work(world: InprocWorld) -> None:
        folder_on(world, plans[world.host], None)

    for error in on_hosts(work):
        assert isinstance(error, ConfigError), error
        assert error.what == f"host0 and host1 differ in their {name}"
    assert not (tmp_path / "run").exists()


def test_threads_and_paths_may_differ(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    plans = {"host0": plan(out=out), "host1": plan(threads=2, out="elsewhere")}

    def work(world: InprocWorld) -> Path:
        return folder_on(world, plans[world.host], None).path

    assert on_hosts(work) == [tmp_path / "run"] * 2


def test_hosts_share_the_folder_that_the_first_makes(tmp_path: Path) -> None:
    shared = plan(out=str(tmp_path / "run"))
    one, other = on_hosts(lambda world: folder_on(world, shared, None))
    assert type(one) is RunFolder
    assert type(other) is FollowerFolder
    assert one.path == other.path == tmp_path / "run"


def test_a_folder_that_cannot_be_made_ends_all_hosts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shared = plan(out=str(tmp_path / "file" / "run"))
    for error in on_hosts(lambda world: folder_on(world, shared, None)):
        assert isinstance(error, ConfigError), error
        assert "host0: " in error.what


def test_a_host_that_does_not_see_the_folder_is_named_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = plan(out=str(tmp_path / "run"))
    monkeypatch.setattr(FollowerFolder, "config_file", Path("/nowhere/config.yaml"), raising=False)
    for error in on_hosts(lambda world: folder_on(world, shared, None)):
        assert isinstance(error, ConfigError), error
        assert error.what == "host1: this host does not see the folder of the run"
        assert str(tmp_path / "run") in str(error)
