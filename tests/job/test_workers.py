"""Jobs with workers: they stop at a whole iteration, go on, and are replayed to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from purine.errors import CheckpointError, ConfigError
from purine.job import RunFolder, Saved, Trained, Training, make_plan, merge, replay
from purine.runtime import checkpoint
from purine.runtime.record import Record
from tests.cli.runs import metrics
from tests.command import call

RUN = {
    "net": "mlp",
    "data": "synthetic:image=1x4x4,classes=3,count=60",
    "batch": 6,
    "iters": 12,
    "save_every": 5,
    "log_every": 4,
    "share_cores": True,
    "threads": 1,
}
SSP = {"devices": "cpu:0-2", "parallel": "asynchronous=ssp,staleness=1"}
EASGD = {"devices": "cpu:0-1", "parallel": "asynchronous=easgd,every=2"}


def trained(out: Path, scheme: dict[str, str], *, after: int | None = None) -> RunFolder:
    """Begin a run, or go on with it, and stop it after so many results."""
    folder = RunFolder(out)
    plan = make_plan(merge(RUN, scheme, {"out": str(out)}))
    if not folder.config_file.exists():
        folder = RunFolder.create(plan.job, plan.net)
    seen: list[object] = []
    with Training(plan, folder) as training:
        for event in training.events(
            lambda: after is not None and sum(isinstance(item, Trained) for item in seen) >= after
        ):
            seen.append(event)
    assert isinstance(seen[-1], Saved)
    stale = [event.staleness for event in seen if isinstance(event, Trained)]
    assert all(item is not None and item[0] <= item[1] for item in stale)
    return folder


@pytest.mark.parametrize("scheme", [SSP, EASGD])
@pytest.mark.parametrize("after", [1, 4])
def test_a_job_that_was_stopped_goes_on_and_is_replayed(
    tmp_path: Path, scheme: dict[str, str], after: int
) -> None:
    workers = 3 if scheme is SSP else 2
    folder = trained(tmp_path / "run", scheme, after=after)
    stopped = checkpoint.load(folder.path).iteration
    assert stopped % workers == 0
    assert after <= stopped // workers < 12
    trained(folder.path, scheme)
    record = Record.load(folder.path / "updates.record")
    assert record.iterations == 12 * workers
    assert stopped in record.cuts
    found = replay(folder)
    assert (found.iterations, found.workers, found.different) == (12 * workers, workers, ())
    rows = [row["workers"] for row in metrics(folder.path) if "workers" in row]
    assert len(rows) == 3
    for row in rows:
        assert isinstance(row, list)
        assert [figures["worker"] for figures in row] == list(range(workers))
        assert all(figures["staleness"] <= figures["largest_staleness"] for figures in row)


def test_the_command_tells_whether_a_run_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained(tmp_path / "run", SSP)
    called = call("replay", folder.path)
    assert (called.code, called.err) == (0, "")
    assert "36 iterations of 3 workers replayed: all states are the same" in called.out
    plain = checkpoint.load

    def other(*arguments: object, **settings: object) -> checkpoint.Checkpoint:
        saved = plain(*arguments, **settings)  # type: ignore[arg-type]
        values = {name: value + 1 for name, value in saved.values.items()}
        return replace(saved, values=values)

    monkeypatch.setattr("purine.job.repeat.checkpoint.load", other)
    called = call("replay", folder.path)
    assert called.code == 1
    assert "states differ" in called.err


def test_what_has_no_record_is_refused(tmp_path: Path) -> None:
    plan = make_plan(merge(RUN, {"out": str(tmp_path / "plain")}))
    folder = RunFolder.create(plan.job, plan.net)
    with Training(plan, folder) as training:
        list(training.events())
    with pytest.raises(CheckpointError, match="no record of updates"):
        replay(folder)
    assert call("replay", folder.path).code == 2


def test_a_record_that_begins_later_is_refused(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", EASGD)
    path = folder.path / "updates.record"
    record = Record.load(path)
    record.split(record.cuts[1])[1].save(path)
    with pytest.raises(ConfigError, match="does not begin at the start"):
        replay(folder)
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="cannot be read"):
        replay(folder)


def test_workers_on_several_hosts_have_no_record(tmp_path: Path) -> None:
    hosts = {"devices": "host0-1:cpu:0", "parallel": "asynchronous=easgd"}
    plan = make_plan(merge(RUN, hosts, {"out": str(tmp_path / "run")}))
    folder = RunFolder.create(plan.job, plan.net)
    with pytest.raises(ConfigError, match="no record of updates over hosts"):
        replay(folder)
