"""`purine plan`: what is searched, what falls out, and a job that runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from purine.errors import ConfigError
from purine.job.automatic import base_plan
from purine.job.candidates import Candidate, Work, candidates, spans
from purine.job.config import merge
from purine.job.file import read_options
from purine.job.foresee import WhatIf
from purine.job.on_paper import fold_of
from purine.job.plan import JobPlan
from purine.job.search import ERROR, Planned, Search, _Searching, search, with_candidate
from purine.job.what_if import parse_size
from purine.parallel import Scheme
from purine.placement.devices import parse_devices
from purine.simulator.network import Link
from tests.command import call

FAST = {"most": 6, "measuring": 0.0}


def plan_of(devices: str, **options: object) -> JobPlan:
    return base_plan(
        merge({"net": "mlp", "batch": 64, "iters": 4, "devices": devices, "threads": 1, **options})
    )


def test_candidates_divide_devices_and_batch() -> None:
    found = list(candidates(parse_devices("cpu:0-3"), 16, layers=8))
    schemes = {str(one.scheme) for one in found}
    assert {"data=4", "data=2,model=2", "model=4", "data=2,model=2,hybrid=true"} <= schemes
    assert any("data=2,pipeline=2,schedule=zero-bubble" in scheme for scheme in schemes)
    assert all(one.scheme.group == len(one.devices) for one in found)
    assert {len(one.devices) for one in found} == {4, 2, 1}
    odd = candidates(parse_devices("cpu:0-3"), 6, layers=8)
    assert all(one.scheme.data in (1, 2) for one in odd)  # 4 does not divide 6


def test_more_devices_than_a_scheme_may_have_replicas() -> None:
    devices = parse_devices("host0-1249:cpu:0-7")
    found = list(candidates(devices, 10_000, layers=100))
    assert found
    assert not any(one.plain for one in found)
    assert all(one.scheme.pipeline * one.scheme.model <= 32 for one in found)


def test_what_changes_the_numbers_is_taken_only_where_it_is_allowed() -> None:
    devices = parse_devices("host0-1:cpu:0")
    plain = list(candidates(devices, 8))
    assert all(one.compress is None and one.scheme.asynchronous is None for one in plain)
    assert {"native"} == {one.scheme.topology for one in plain} - {"sharded"}
    free = list(candidates(devices, 8, allow=("compression", "staleness"), shared=True))
    assert {one.compress for one in free} == {None, "fp16", "int8"}
    assert any(one.scheme.asynchronous is not None for one in free)
    assert any(one.scheme.shared for one in free)


def test_estimates_know_links_and_idle_stages() -> None:
    work = Work(1.0, 10**9, rate=1e9)
    devices = parse_devices("host0-1:cpu:0")
    plain = Candidate(devices, Scheme(data=2))
    assert work.compute(plain) == 0.5
    assert work.estimate(plain) == pytest.approx(1.0)
    assert work.estimate(replace(plain, compress="fp16")) == pytest.approx(0.75)
    stages = Candidate(devices, Scheme(pipeline=2, schedule="gpipe", micro=2))
    assert work.estimate(stages) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "text", ["cpu:0-3", "host0-1:cpu:0", "host0-3:cuda:0-1", "cpu:0,cpu:2", "a:cpu:0,b:cpu:0"]
)
def test_spans_read_back(text: str) -> None:
    assert parse_devices(spans(parse_devices(text))) == parse_devices(text)


def test_a_slow_link_makes_another_plan_than_a_quick_one() -> None:
    plan = plan_of("host0-1:cpu:0", net="lenet")
    slow = search(plan, Search(what_if=WhatIf(Link("slow", 1e6, 1e-3)), most=8, measuring=0.0))
    assert not slow.best.candidate.plain
    plain = next(one for one in slow.plans if one.candidate.plain)
    assert plain.seconds > 2 * slow.best.seconds
    assert [one.seconds for one in slow.plans] == sorted(one.seconds for one in slow.plans)
    assert all(one.seconds < slow.best.seconds * (1 + ERROR) for one in slow.ties)


def test_what_does_not_fit_is_not_recommended() -> None:
    plan = plan_of("cpu:0-1", net="lenet")
    free = search(plan, Search(**FAST))
    peaks = sorted(one.peak for one in free.plans)
    assert peaks[0] < peaks[-1]
    tight = search(plan, Search(memory=(peaks[0] + peaks[-1]) // 2, **FAST))
    assert tight.best.peak <= tight.memory
    assert any(why.startswith("it needs") for _, why in tight.out)
    with pytest.raises(ConfigError, match="no scheme fits into the memory"):
        search(plan, Search(memory=1000, **FAST))


def test_the_step_of_a_candidate_is_that_of_its_job() -> None:
    plan = plan_of("cpu:0-3")
    found = with_candidate(plan, Candidate(parse_devices("cpu:0-1"), Scheme(data=2, micro=2)))
    assert found.job.devices == "cpu:0-1"
    assert found.job.parallel == "data=2,micro=2"
    assert {op.location.device for op in found.step.ops.values()} == {"cpu:0", "cpu:1"}


def test_a_plan_is_written_as_a_job_that_runs(tmp_path: Path) -> None:
    file, job = tmp_path / "job.yaml", ("--net", "mlp", "--batch", "32", "--iters", "4")
    done = call("plan", *job, "--devices", "cpu:0", "--measure", "1", "--out", file)
    assert done.code == 0, done.err
    assert "recommended:" in done.out
    assert "times are measured here" in done.out
    assert read_options(file)["net"] == "mlp"
    assert call("train", file, "--out", tmp_path / "run").code == 0
    wrong = call("plan", *job, "--out", tmp_path / "none" / "job.yaml", "--measure", "0")
    assert wrong.code == 2
    assert "error:" in wrong.err


def test_figures_of_a_plan_for_devices_that_are_not_there() -> None:
    done = call(
        *("plan", "--net", "mlp", "--batch", "64", "--iters", "4", "--devices", "host0-3:cuda:0"),
        *("--link", "1gbit", "--memory", "16gb", "--simulate", "3", "--json"),
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["plans"][0]["seconds"] <= found["plans"][-1]["seconds"]
    assert any("more promising" in one["why"] for one in found["out"])


def test_train_takes_the_plan(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("net: mlp\nbatch: 32\niters: 3\ndevices: all\nparallel: auto\n")
    done = call("train", job, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "auto" not in (tmp_path / "run" / "config.yaml").read_text()
    again = call("train", job, "--resume", "--out", tmp_path / "run", "--iters", "4")
    assert again.code == 0, again.err


def test_sizes_of_memory() -> None:
    assert parse_size("80gb") == 80 * 10**9
    for text in ("", "much", "0gb", "-1gb", "16"):
        with pytest.raises(ConfigError, match="no size of memory"):
            parse_size(text)
    done = call("plan", "--net", "mlp", "--allow", "luck")
    assert done.code == 2
    assert "--allow is 'luck'" in done.err


def test_hosts_that_do_the_same_are_simulated_once() -> None:
    """A few replicas stand for all: with their traffic, and the latency of the longer ways."""
    devices = parse_devices("host0-99:cpu:0-7")
    scheme = Scheme(data=200, pipeline=2, model=2, micro=4)
    fold = fold_of(Candidate(devices, scheme), [1 << 20] * 8)
    assert fold is not None
    assert (fold.kept, fold.of, fold.groups) == (16, 100, 8)
    assert 1 <= fold.weight < 1.2
    assert fold.delay(1e9, 1e-4) > fold.delay(1e10, 1e-4) > 0
    few = Candidate(parse_devices("host0-3:cpu:0-7"), Scheme(data=8, pipeline=2, model=2))
    assert fold_of(few) is None
    uneven = Candidate((*devices[:-1], "host100:cpu:0"), scheme)
    assert fold_of(uneven) is None


def test_many_devices_are_predicted_and_planned() -> None:
    job = ("--net", "mlp", "--batch", "1000", "--iters", "4", "--devices", "host0-124:cpu:0-7")
    job += ("--threads", "1")
    done = call("predict", *job, "--parallel", "data=1000", "--what-if", "link=10gbit")
    assert done.code == 0, done.err
    assert "represent all" in done.out
    done = call("plan", *job, "--link", "10gbit", "--memory", "1gb", "--simulate", "1", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["plans"]) == 1


def test_plans_that_are_equally_good_are_run() -> None:
    plan = plan_of("cpu:0", data="synthetic:image=1x28x28,classes=10,count=256")
    searching = _Searching(plan, Search(trial=0.2))
    one = Candidate(("cpu:0",), Scheme())
    planned = [Planned(one, 1.0 + 0.01 * k, 1.0, 1.0, {}) for k in range(2)]
    ran = searching._tried([*planned, Planned(one, 9.0, 9.0, 9.0, {})])
    assert [found.tried is not None for found in ran] == [True, True, False]
    assert ran[0].tried is not None
    assert ran[1].tried is not None
    assert 0 < ran[0].tried <= ran[1].tried < 1


def test_plans_run_until_none_of_the_others_may_be_quicker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ran took 1.5 times to twice what was predicted, so others may be as far off."""
    plan = plan_of("cpu:0-1")
    predicted = [1.0, 1.05, 1.2, 1.3, 1.4, 1.7, 3.0]
    factors = [2.0, 1.9, 1.5, 1.0, 1.0, 1.0, 1.0]
    every = list(candidates(parse_devices("cpu:0-1"), 64, layers=5))[: len(predicted)]
    took = {one: s * f for one, s, f in zip(every, predicted, factors, strict=True)}
    rounds: list[list[Candidate]] = []

    def with_candidate_only(plan: JobPlan, one: Candidate) -> Candidate:
        return one

    def tried(steps: list[Candidate], *, seconds: float) -> list[float]:
        rounds.append(steps)
        return [took[one] for one in steps]

    monkeypatch.setattr("purine.job.search.with_candidate", with_candidate_only)
    monkeypatch.setattr("purine.job.search.tried", tried)
    monkeypatch.setattr("purine.job.search.measurable", lambda plan: True)
    searching = _Searching(plan, Search(trial=0.1))
    planned = [Planned(one, s, s, s, {}) for one, s in zip(every, predicted, strict=True)]
    found = searching._tried(planned)
    assert rounds == [every[:3], [every[2], *every[3:5]], [every[3], every[5]]]
    assert [one.candidate for one in found[:2]] == every[3:5]
    assert [one.tried is not None for one in found] == [True] * 6 + [False]
    assert {one.candidate for one in found} == set(every)
