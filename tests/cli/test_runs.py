"""`purine plot`, `purine runs` and `purine compare`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from purine.trace.events import Event
from purine.trace.trace import Trace
from tests.command import call, tree
from tests.job.histories import rows, written


def test_plots_go_to_the_terminal_or_to_a_file(tmp_path: Path) -> None:
    one = written(tmp_path / "runs/one", rows(40))
    two = written(tmp_path / "runs/two", rows(80, factor=2.0))
    shown = call("plot", one, two, "--width", "70")
    assert shown.code == 0
    assert shown.out.count("loss over iterations") == 2  # no colours: one after the other
    assert "one: loss 0.2 at 10 to 0.05 at 40, 0.15 in the last of 2 tests." in shown.out
    assert max(map(len, shown.out.split("one: loss")[0].splitlines())) <= 70
    file = tmp_path / "c.svg"
    assert (
        call("plot", one, two, "--out", file, "--log", "--smooth", "1").out == f"{file}: 2 runs\n"
    )
    text = file.read_text()
    assert [item for item in ElementTree.fromstring(text).iter() if item.text == "accuracy"]
    assert "raw s" not in text  # nothing is averaged, so there is one line
    by_time = call("plot", one, "--x", "seconds").out
    assert "loss over seconds" in by_time
    assert "to 0.05 at 4," in by_time


def test_a_run_that_has_written_nothing_has_no_plot(tmp_path: Path) -> None:
    empty = written(tmp_path / "a", finished=False)
    called = call("plot", empty, "--out", tmp_path / "c.svg")
    assert called.code == 2
    assert "error: " in called.err
    assert "there is nothing to plot yet" in called.err
    assert not (tmp_path / "c.svg").exists()
    lossless = [{"iteration": 1, "epoch": 1, "loss": None, "lr": 0.1}]
    assert call("plot", written(tmp_path / "b", lossless)).code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plot", "nowhere"), "there is no run in this folder"),
        (("plot", "a", "--out", "c.png"), "a file of type .png cannot be written here"),
        (("plot", *["a"] * 33), "33 runs are too many for one plot"),
        (("plot", "a", "--smooth", "0"), "Invalid value for '--smooth'"),
        (("runs", "nowhere"), "there are no runs here"),
        (("runs", "empty"), "there are no runs here"),
        (("runs", "a/config.yaml"), "there are no runs here"),
        (("compare", "a", "a"), "both are the same run"),
        (("compare", "a", "b/../a"), "both are the same run"),
        (("compare", "a", "broken"), "the results of this run cannot be read"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a", rows(20))
    (written(tmp_path / "broken") / "summary.json").write_text("[")
    (tmp_path / "b").mkdir()
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    called = call(*arguments)
    assert called.code == 2
    assert message in called.err
    assert called.out == ""
    assert tree(tmp_path) == before


def test_runs_are_listed_with_what_differs(tmp_path: Path) -> None:
    written(tmp_path / "a", rows(40), lr=0.1)
    written(tmp_path / "deep/b", rows(20, factor=3.0), lr=0.2, finished=False)
    written(tmp_path / ".hidden", rows(20))
    (tmp_path / "loop").symlink_to(tmp_path)
    called = call("runs", tmp_path)
    head, first, second, _, common = called.out.splitlines()
    assert head.split()[:2] == ["run", "lr"]
    assert first.split()[:7] == ["a", "0.1", "40", "0.0500", "0.1500", "0.9500", "123"]
    assert second.split()[:3] == ["deep/b", "0.2", "20"]
    assert (first.split()[-1], second.split()[-1]) == ("finished", "stopped")
    assert common.startswith("all: net mlp, data fashion-mini")
    listed = json.loads(call("runs", tmp_path, "--format", "json").out)["runs"]
    assert [run["options"]["lr"] for run in listed] == [0.1, 0.2]
    assert listed[1]["test_loss"] == pytest.approx(0.4)
    assert listed[1]["state"] == "stopped"


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    written(tmp_path / "a", rows(40))
    (written(tmp_path / "b") / "config.yaml").write_text("net: [")
    called = call("runs", tmp_path)
    assert called.code == 2
    assert called.out.splitlines()[1].startswith("a ")
    assert f"error: {tmp_path / 'b/config.yaml'}" in called.err


def test_copies_of_files_in_the_folders_are_no_difference(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run = written(tmp_path / name, rows(20))
        (run / "net.yaml").touch()
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(config.replace("net: mlp", f"net: {run / 'net.yaml'}"))
    assert "settings: the same" in call("compare", tmp_path / "a", tmp_path / "b").out


def test_comparing_settings_numbers_and_losses(tmp_path: Path) -> None:
    one = written(tmp_path / "one", rows(40), batch=64)
    metrics = rows(40)
    metrics[3] |= {"loss": 0.125}  # iteration 30
    two = written(tmp_path / "two", metrics, batch=128)
    called = call("compare", one, two)
    lines = [" ".join(line.split()) for line in called.out.splitlines()]
    assert "batch 64 128" in lines
    assert "loss 0.0500 0.0500 1.000" in lines
    assert "losses: they differ from iteration 30 on, the first that differs: " in called.out
    assert f"time by kind: no trace in {one} and {two}" in called.out
    found = json.loads(call("compare", one, two, "--format", "json").out)
    assert found["losses_differ"] == {"iteration": 30, "losses": [2.0 / 30, 0.125]}
    assert found["settings"] == {"batch": [64, 128]}
    again = written(tmp_path / "again", rows(40))
    assert "equal in every bit in the 4 iterations" in call("compare", one, again).out


def test_comparing_times_by_kind(tmp_path: Path) -> None:
    runs = []
    for name, conv in (("one", 100), ("two", 300)):
        run = written(tmp_path / name, rows(20))
        events = []
        for iteration in range(3):
            begin = iteration * 1000
            place = ("host a, cpu:0", "compute")
            events.append(Event("c", "Conv", iteration, *place, begin, begin + conv))
            events.append(Event("r", "Relu", iteration, *place, begin + conv, begin + conv + 50))
        Trace(tuple(events), (("c", "r", 0),)).save(run / "trace.json")
        runs.append(run)
    found = json.loads(call("compare", *runs, "--format", "json").out)
    assert found["nanoseconds_by_kind"] == {"Conv": [100.0, 300.0], "Relu": [50.0, 50.0]}
    lines = [
        " ".join(line.split()) for line in call("compare", *runs, "--top", "1").out.splitlines()
    ]
    assert "Conv 0.1 µs 0.3 µs 3.000" in lines
    assert "and 1 more kinds, which differ less" in lines
