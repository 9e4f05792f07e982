"""Delays, reorderings and losses: a job completes, or tells what waits for what; none hangs."""

from __future__ import annotations

import pytest

from purine.errors import HostLostError, StallError
from purine.runtime.receipts import Receipts
from tests.dispatch.test_host_core import SCHEMES, parts
from tests.runtime.host_cases import step_of, train
from tests.runtime.lossy_hosts import Outcome, simulate
from tests.runtime.test_hosts import on_hosts

SCHEDULES = 1000
ITERATIONS = 3


def outcome_of(number: int) -> Outcome:
    scheme = list(SCHEMES)[number % len(SCHEMES)]
    delay, loss = (0.0, 0.01, 3.0)[number % 3], (0.0, 0.001, 0.01, 0.1)[number % 4]
    return simulate(parts(scheme), number, iterations=ITERATIONS, delay=delay, loss=loss)


def test_of_a_thousand_schedules_none_hangs_without_a_word() -> None:
    outcomes = [outcome_of(number) for number in range(SCHEDULES)]
    for number, outcome in enumerate(outcomes):
        assert not outcome.hangs, number
        if not outcome.lost:  # credits that are lost are repeated
            assert not outcome.errors, (number, outcome.errors)
            continue
        told = [error for error in outcome.errors.values() if isinstance(error, StallError)]
        assert told, number
        for error in outcome.errors.values():
            assert isinstance(error, StallError | HostLostError)
            assert error.op
            assert error.blob
            assert "is lost" in error.what
    assert 300 < sum(bool(outcome.lost) for outcome in outcomes) < 800


def test_a_loss_is_told_with_the_counts_the_op_and_the_blob() -> None:
    outcome = next(o for o in map(outcome_of, range(SCHEDULES)) if len(o.lost) == 1)
    (error,) = [e for e in outcome.errors.values() if isinstance(e, StallError)]
    (lost,) = outcome.lost
    assert f"a value from host {lost.peer!r} is lost: it sent " in error.what
    assert error.expected == (
        f"blob {error.blob!r} of iteration {lost.version}, for which op {error.op!r} waits"
    )


def test_what_is_on_its_way_is_not_lost() -> None:
    receipts = Receipts(["host1"])
    receipts.tell("host1", 1, now=0.0)
    receipts.tell("host1", 3, now=5.0)
    receipts.arrive("host1")
    assert not receipts.overdue(before=10.0)
    receipts.tell("host1", 3, now=6.0)
    assert not receipts.overdue(before=5.0)
    assert receipts.overdue(before=6.0)["host1"].arrived == 1
    receipts.restart(20.0)
    assert not receipts.overdue(before=19.0)


def test_an_arrival_before_its_count_is_told_is_counted() -> None:
    receipts = Receipts(["host1"])
    receipts.arrive("host1")
    receipts.tell("host1", 1, now=0.0)
    assert not receipts.overdue(before=100.0)


def test_a_lost_value_ends_all_hosts_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With threads and kernels; the hosts wait only for a short time."""
    monkeypatch.setattr("purine.runtime.exchange._BEAT", 0.05)
    monkeypatch.setattr("purine.runtime.exchange._OVERDUE", 0.3)
    step = step_of("lenet", "data", 2)
    errors = on_hosts(lambda world: train("lenet", step, world), loss=0.2)
    assert any(isinstance(error, StallError) for error in errors), errors
    for error in errors:
        assert isinstance(error, StallError | HostLostError)
        assert error.op in step.ops or str(error.op).startswith("put/")
