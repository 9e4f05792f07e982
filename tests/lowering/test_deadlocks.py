"""Schedules over several hosts: what can deadlock is refused with its cycle, the rest runs."""

from __future__ import annotations

import os
import re
from itertools import pairwise

import pytest

from purine.errors import GraphError
from purine.graph import Builder, Graph, Location, save_yaml
from purine.lowering.host_rules import host_problems
from purine.lowering.hosts import hosts_of
from purine.lowering.proof import prove
from tests.command import call
from tests.lowering.schedules import BREAKS, broken, good, refusal, run_to_end, stalls
from tests.lowering.test_hosts import chain, step_of

COUNT = int(os.environ.get("PURINE_SCHEDULES", "60"))
"""How many schedules are drawn; half of them are broken. `benchmarks/deadlocks.py` draws 500."""


@pytest.mark.parametrize("seed", range(COUNT // 2))
def test_a_schedule_that_can_deadlock_is_refused_with_its_cycle(seed: int) -> None:
    schedule = broken(seed)
    error = refusal(schedule)
    assert error is not None, schedule.how
    assert " -> " in error.what
    if schedule.parts is not None or schedule.slots is not None:
        assert stalls(schedule)
        assert set(re.findall(r"host\d", error.what)) <= set(hosts_of(schedule.step))
    else:
        assert_is_cycle(schedule.step, error)


def assert_is_cycle(step: Graph, error: GraphError) -> None:
    """What an error shows is a cycle of the step, and each op waits for the one before it."""
    assert error.found is not None
    words = [word for word in error.found.split(" -> ") if not word.startswith("'")]
    names = [word.partition(" on ")[0] for word in words]
    assert names[0] == names[-1]
    for name, after in pairwise(names):
        assert after in step.successors[name]
    on = {word.partition(" on ")[2] for word in words} - {""}
    hosts = {step.ops[name].location.host for name in names}
    assert on == (hosts if len(hosts) > 1 else set())


@pytest.mark.parametrize("seed", range(COUNT - COUNT // 2))
def test_a_schedule_that_cannot_runs_to_its_end_whatever_the_delays(seed: int) -> None:
    schedule = good(seed)
    assert refusal(schedule) is None
    assert not run_to_end(schedule, seed=seed)


def test_every_sort_of_break_is_drawn() -> None:
    assert {broken(seed).how for seed in range(2 * len(BREAKS))} == set(BREAKS)


def test_values_that_need_no_data_do_not_wait_for_each_other() -> None:
    """All of these come from states alone, and each host waits for the other."""
    builder = Builder()
    here, there = Location("host0"), Location("host1")
    blob = builder.blob("w", (2,), location=here)
    builder.state(blob, blob)
    for k, (at, to) in enumerate([(here, there), (there, here), (here, there)]):
        made = builder.blob(f"x{k}", (2,), location=at)
        builder.op(f"make{k}", "Relu", [blob], [made], location=at)
        blob = builder.blob(f"x{k}@", (2,), location=to)
        builder.op(f"copy{k}", "Copy", [made], [blob], location=to, lane="inbound")
    assert host_problems(builder.graph()) == []


def test_a_proof_counts_what_it_looked_at() -> None:
    proof = prove(step_of(data=4, topology="native"))
    assert proof.hosts == 2
    assert proof.orders == 2
    assert all(proof.waits.values())
    assert "2 hosts cannot deadlock" in str(proof)


def test_check_proves_a_step_and_compares_its_memory(tmp_path: object) -> None:
    path = f"{tmp_path}/step.yaml"
    save_yaml(step_of(), path)
    checked = call("check", path)
    assert checked.code == 0
    assert "2 hosts cannot deadlock" in checked.out
    small = call("check", path, "--memory", "1mb")
    assert small.code == 2
    assert "the step does not fit into the memory of host host0, cpu:0" in small.err
    assert "at most 1.0 MB" in small.err
    wrong = call("check", path, "--memory", "much")
    assert wrong.code == 2
    assert "'much' is no size" in wrong.err


def test_check_shows_the_cycle_of_a_schedule(tmp_path: object) -> None:
    builder = Builder(chain())
    builder.control.add(("end", "make"))
    save_yaml(builder.graph(), f"{tmp_path}/step.yaml")
    checked = call("check", f"{tmp_path}/step.yaml")
    assert checked.code == 2
    assert "make on host0 -> 'a' -> there on host1" in checked.err
    assert "end on host0 -> make on host0" in checked.err
