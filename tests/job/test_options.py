"""The table of options: what is derived from it has every option, and nothing else."""

from __future__ import annotations

import typing
from dataclasses import fields

import pytest

from purine.errors import ConfigError
from purine.job import Job, merge
from purine.job.options import OPTIONS, Resume
from tests.command import call

VALUES: dict[str, tuple[list[str], object]] = {
    "net": (["mlp"], "mlp"),
    "test_net": (["other.yaml"], "other.yaml"),
    "data": (["synthetic"], "synthetic"),
    "weights": (["a.safetensors", "b.safetensors"], "a.safetensors,b.safetensors"),
    "batch": (["16"], 16),
    "epochs": (["3"], 3),
    "iters": (["7"], 7),
    "solver": (["adam"], "adam"),
    "lr": (["0.5"], 0.5),
    "momentum": (["0.8"], 0.8),
    "weight_decay": (["1e-3"], 1e-3),
    "lr_policy": (["cosine"], "cosine"),
    "clip": (["2"], 2.0),
    "accumulate": (["4"], 4),
    "precision": (["bf16"], "bf16"),
    "seed": (["5"], 5),
    "devices": (["cpu:0-1"], "cpu:0-1"),
    "parallel": (["data=2"], "data=2"),
    "compress": (["int8"], "int8"),
    "threads": (["1"], 1),
    "share_cores": ([], True),
    "prefetch": (["0"], 0),
    "out": (["runs/a"], "runs/a"),
    "save_every": (["10"], 10),
    "keep": (["1"], 1),
    "test_every": (["20"], 20),
    "log_every": (["2"], 2),
    "trace": ([], True),
    "trace_iters": (["9"], 9),
    "tensorboard": ([], True),
    "layout": (["contiguous"], "contiguous"),
    "compile": ([], True),
    "mean": (["1,2,3"], (1.0, 2.0, 3.0)),
    "mean_file": (["mean.binaryproto"], "mean.binaryproto"),
    "scale": (["0.1"], 0.1),
    "crop": (["24"], 24),
    "pad": (["2"], 2),
    "mirror": ([], True),
}
"""For each option, its arguments on the command line and the value that they stand for."""


@pytest.fixture(scope="module")
def help_text() -> str:
    return " ".join(call("train", "--help").out.split())


def test_the_fields_of_a_job_are_the_table() -> None:
    assert [item.name for item in fields(Job)] == list(OPTIONS) == list(VALUES)
    assert {item.name: item.default for item in fields(Job)} == {
        name: option.default for name, option in OPTIONS.items()
    }
    hints = typing.get_type_hints(Job)
    for name, option in OPTIONS.items():
        assert hints[name] == (option.annotation | None if option.optional else option.annotation)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_in_the_help(name: str, help_text: str) -> None:
    option = OPTIONS[name]
    assert f"{option.flag} " in help_text
    assert "".join(option.help.split()) in "".join(help_text.split())
    if option.shown_default is not None:
        assert f"[default:({option.shown_default})]".replace(" ", "") in help_text.replace(" ", "")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_goes_from_the_command_line_to_the_job(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = {}

    def run_job(file: object, given: dict[str, object], **flags: object) -> int:
        received.update(given)
        return 0

    monkeypatch.setattr("purine.cli.progress.run_job", run_job)
    texts, value = VALUES[name]
    words = [word for text in texts for word in (OPTIONS[name].flag, text)] or [OPTIONS[name].flag]
    assert call("train", *words).code == 0
    assert received == {name: value}
    needed = {"crop": 8} if name == "pad" else {}
    assert getattr(merge(needed, received), name) == value


def test_only_options_that_were_given_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("purine.cli.progress.run_job", lambda *args, **kw: calls.append((args, kw)))
    assert call("train", "--no-mirror", "--dry-run").code == 0
    settings = {"resumed": False, "dry": True, "live": False}
    assert calls == [((None, {"mirror": False}), settings)]


@pytest.mark.parametrize("name", [name for name, item in OPTIONS.items() if item.least is not None])
def test_values_below_the_least_are_refused(name: str) -> None:
    least = OPTIONS[name].least
    assert least is not None
    needed = {"crop": 8} if name == "pad" else {}
    assert getattr(merge(needed, {name: least}), name) == least
    with pytest.raises(ConfigError, match=f"{name} is {least - 1}") as refused:
        merge(needed, {name: least - 1})
    assert refused.value.expected == f"{least} or more"
    assert refused.value.remedy == f"change {OPTIONS[name].flag}"


def test_what_identifies_a_run_may_not_change_when_it_is_resumed() -> None:
    for option in OPTIONS.values():
        assert not option.identifies or option.resume is Resume.SAME, option.name


def test_defaults_and_fallbacks_are_values_of_their_options() -> None:
    for name, option in OPTIONS.items():
        for value in (option.default, option.fallback):
            if value is not None:
                assert getattr(merge({name: value}), name) == value
        assert option.fallback is None or option.settled, name


def test_an_option_that_replaces_another_overrides_it() -> None:
    assert merge({"epochs": 3}, {"iters": 5}) == Job(iters=5)
    assert merge({"iters": 3}, {"epochs": 5}) == Job(epochs=5)
    assert merge({"mean": 3.0}, {"mean_file": "a"}) == Job(mean_file="a")
    with pytest.raises(ConfigError, match="both mean and mean_file are given"):
        Job(mean=1.0, mean_file="a")
