"""Jobs of workers on several hosts, which are processes of this machine: they come and go."""

from __future__ import annotations

import json
import os
import re
import select
import signal
from pathlib import Path

import pytest

from purine.runtime import checkpoint
from purine.trace.trace import Trace, puts_of
from tests.cli.runs import metrics
from tests.cli.test_launch import ended, started
from tests.command import call
from tests.forked import Child, start

pytestmark = pytest.mark.multiprocess

JOB = ["--net", "mlp", "--data", "fashion-mini", "--seed", "0", "--lr", "0.05", "--momentum", "0"]
JOB += ["--share-cores", "--threads", "1", "--log-every", "5"]


def job(scheme: str, hosts: int, **options: object) -> list[str]:
    words = [*JOB, "--devices", f"host0-{hosts - 1}:cpu:0", "--parallel", f"asynchronous={scheme}"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def launched(*words: object, hosts: int, transport: str = "shm") -> Child:
    return started("launch", "--hosts", hosts, "--transport", transport, "--", *words)


def hosts_of(process: Child) -> list[int]:
    """The hosts that a command has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [*map(int, children.split())]


def trained(run: Path) -> int:
    """How many iterations the metrics tell of."""
    rows = metrics(run) if (run / "metrics.jsonl").exists() else []
    return max((int(str(row["iteration"])) for row in rows), default=0)


def until(process: Child, run: Path, iteration: int) -> None:
    """Wait until a run has come to an iteration."""
    while process.runs and trained(run) < iteration:
        select.select([], [], [], 0.05)


@pytest.mark.parametrize(
    ("scheme", "transport"),
    [
        ("downpour,push=2,fetch=2", "shm"),
        ("easgd,every=2,servers=1", "tcp"),
        ("local,every=2", "tcp"),
        ("diloco,every=2,servers=1", "shm"),
    ],
)
def test_a_job_trains_every_iteration_and_is_measured(
    tmp_path: Path, scheme: str, transport: str
) -> None:
    run = tmp_path / "run"
    words = job(scheme, 3, iters=40, batch=48, out=run)
    code, out, err = ended(launched("train", *words, hosts=3, transport=transport))
    assert (code, "done: 40 iterations" in out) == (0, True), err
    workers = 2 if "servers=1" in scheme else 3
    rows = [row["workers"] for row in metrics(run) if "workers" in row]
    assert all([figures["worker"] for figures in row] == [*range(workers)] for row in rows)
    assert sum(figures["iterations"] for row in rows for figures in row) == 40 * workers
    assert checkpoint.load(run).iteration == 40 * workers
    summary = json.loads((run / "summary.json").read_text())
    tested = call("test", run)
    assert f"accuracy {summary['test_accuracy']:.4f}" in tested.out
    assert not (run / "meeting.json").exists()
    assert call("join", run).code == 2


@pytest.mark.parametrize("iters", [4, 40])
def test_a_trace_shows_what_couriers_carry_and_what_is_read(tmp_path: Path, iters: int) -> None:
    run = tmp_path / "run"
    words = job("easgd,every=2,servers=1", 2, iters=40, batch=32, trace_iters=iters, out=run)
    code, out, err = ended(launched("train", *words, "--trace", hosts=2, transport="tcp"))
    assert (code, "done: 40 iterations" in out) == (0, True), err
    trace = Trace.load(run / "trace.json")
    assert {clock.host for clock in trace.clocks} == {"host0", "host1"}
    puts = puts_of(trace)
    ways = {(trace.events[put].host, trace.events[at].host) for at, put in puts.items()}
    assert ways == {("host0", "host1"), ("host1", "host0")}
    event_at = {(event.op, event.iteration): event for event in trace.events}
    complete = [read for read in trace.reads if read[2:] in event_at]
    ends = [(event_at[push, made], event_at[op, its]) for push, made, op, its in complete]
    assert ends
    assert all(push.host == reader.host for push, reader in ends)  # the store of one host
    assert all(push.end <= reader.end for push, reader in ends)


def test_a_job_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = job("easgd,every=2", 3, iters=100_000, save_every=100_000, batch=48, out=run)
    process = launched("train", *words, hosts=2)
    until(process, run, 5)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, err
    assert "to go on:" in out
    stopped = checkpoint.load(run).iteration
    assert stopped > 0
    assert stopped % 3 == 0  # the third worker may still join
    again = launched("train", "--resume", "--out", run, hosts=2)
    until(again, run, stopped // 3 + 5)
    os.killpg(again.pid, signal.SIGINT)
    code, out, err = ended(again)
    assert code == 130, err
    assert f"from iteration {stopped // 3} " in out
    assert checkpoint.load(run).iteration > stopped


def test_workers_die_leave_and_join_while_the_others_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = job("local,every=2,servers=1", 3, iters=1_000_000, batch=32, out=run)
    process = launched("train", *words, hosts=3)
    until(process, run, 5)
    *_, victim = hosts_of(process)
    assert "there is no worker 7" in call("leave", run, 7).err
    os.kill(victim, signal.SIGKILL)
    joined = start("-m", "purine", "join", run, session=True)
    assert joined.out.readline().startswith("waiting for a seat")
    assert "training as host2" in joined.out.readline()
    while joined.runs:  # it may not be there yet
        call("leave", run, 1)
        select.select([], [], [], 0.1)
    code, _, err = ended(joined)
    assert code == 0, err
    again = start("-m", "purine", "join", run, "--transport", "tcp", session=True)
    assert "training as host2" in [again.out.readline(), again.out.readline()][1]
    until(process, run, trained(run) + 200)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, err
    told = ["joined", "lost", "joined", "left", "joined"]
    found = re.findall(r"worker 1 (?:is|has) (joined|lost|left)", out)
    assert found == told
    assert "host2: ended with code -9; the others continue" in err
    code, out, err = ended(again)
    assert (code, out) == (0, "left\n"), err


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("ssp", {}, "ssp does not go over hosts"),
        ("gossip", {}, "gossip does not go over hosts"),
        ("easgd,servers=2", {"devices": "host0-2:cpu:0"}, "servers does not go over hosts"),
        ("downpour,stale_rate=true", {}, "stale_rate does not go over hosts"),
        ("downpour,push=4,fetch=2", {}, "downpour pushes and fetches equally often"),
        ("easgd", {"devices": "host0:cpu:0-1,host1:cpu:0-1"}, "share hosts"),
        ("easgd", {"devices": "host1:cpu:0,host0:cpu:0"}, "not one of the first host"),
    ],
)
def test_what_is_not_supported_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, options: dict, message: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = job(scheme, 2, iters=4, out=tmp_path / "run")
    for name, value in options.items():
        words += [f"--{name}", *([] if value is None else [value])]
    called = call("train", *words)
    assert called.code == 2
    assert message in called.err
    assert not (tmp_path / "run").exists()
