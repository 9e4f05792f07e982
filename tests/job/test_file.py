"""Job files: they read back as they were written, and one that was cut short is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.errors import ConfigError
from purine.job import Job, job_text, make_plan, merge, read_options
from purine.job.file import missing_keys
from purine.job.options import OPTIONS
from tests.job.test_options import VALUES


def read_back(text: str, path: Path) -> dict[str, object]:
    path.write_text(text, encoding="utf-8")
    return read_options(path)


@pytest.mark.parametrize("name", [name for name, item in OPTIONS.items() if item.recorded])
def test_every_option_reads_back(name: str, tmp_path: Path) -> None:
    needed = {"crop": 8} if name == "pad" else {}
    job = merge(needed, {name: VALUES[name][1]})
    options = read_back(job_text(job), tmp_path / "job.yaml")
    assert name in options
    assert merge(options) == job
    dashes = f"{name.replace('_', '-')}: "
    text = job_text(job).replace(f"{name}: ", dashes)
    assert read_back(text, tmp_path / "dashes.yaml") == options


def test_texts_that_look_like_something_else_read_back(tmp_path: Path) -> None:
    job = Job(
        net="1e5",
        data="0o7",
        weights="010, \u2028 'x': #y",
        lr=1e-5,
        mean=(0.5, 1e30),
        parallel="pipeline=2,cut=no",
        devices="cpu:0-1",
        mirror=True,
    )
    assert merge(read_back(job_text(job), tmp_path / "job.yaml")) == job


def test_the_folder_of_a_run_is_not_recorded() -> None:
    assert job_text(Job(out="runs/a")) == job_text(Job())


@pytest.mark.parametrize(
    "options", [{"iters": 3}, {"epochs": 1, "layout": "contiguous", "compile": False}]
)
def test_a_recorded_job_that_was_cut_short_is_noticed(
    options: dict[str, object], tmp_path: Path
) -> None:
    lines = job_text(make_plan(merge({"net": "mlp", "batch": 8}, options)).job).splitlines(True)
    assert missing_keys(read_back("".join(lines), tmp_path / "whole.yaml")) == []
    for count in range(len(lines)):
        assert missing_keys(read_back("".join(lines[:count]), tmp_path / "cut.yaml")), lines[count]


def test_one_replica_by_name_is_not_one_replica_for_each_device(tmp_path: Path) -> None:
    """`data: 1` is the default of a scheme, but a job that says it means it."""
    text = "net: mlp\nbatch: 8\ndevices: cpu:0-1\nshare_cores: true\nparallel: {%s}\n"
    said = merge(read_back(text % "data: 1, topology: ring", tmp_path / "said.yaml"))
    with pytest.raises(ConfigError, match="the scheme is for 1 devices, and 2 are named"):
        make_plan(said)
    left_open = merge(read_back(text % "topology: ring", tmp_path / "open.yaml"))
    assert make_plan(left_open).job.parallel == "data=2,topology=ring"
    alone = merge(read_back(text % "data: 1", tmp_path / "alone.yaml"))
    with pytest.raises(ConfigError, match="the scheme is for 1 devices"):
        make_plan(alone)
