"""What the garbage collector leaves out while a run goes on."""

from __future__ import annotations

import pytest

import purine as pu
from purine.machine import collector
from purine.machine.collector import leave_out, take_in


class Collector:
    """Stands in for `gc`: the tests themselves leave out what they have imported."""

    def __init__(self) -> None:
        self.frozen = 0
        self.counted = 0

    def freeze(self) -> None:
        self.frozen += 1

    def unfreeze(self) -> None:
        self.frozen = 0

    def get_freeze_count(self) -> int:
        self.counted += 1
        return self.frozen


@pytest.fixture
def gc(monkeypatch: pytest.MonkeyPatch) -> Collector:
    stand_in = Collector()
    monkeypatch.setattr(collector, "gc", stand_in)
    monkeypatch.setattr(collector, "_theirs", False)
    return stand_in


def test_a_run_is_left_out_until_it_ends(gc: Collector) -> None:
    net = pu.data.prepare(pu.zoo.mlp(batch=8), pu.data.fashion_mini().train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    with pu.Run(step, data=pu.data.fashion_mini()) as run:
        assert not gc.get_freeze_count()
        next(iter(run.steps(1)))
        assert gc.get_freeze_count()
    assert not gc.get_freeze_count()


def test_the_last_of_several_ends_it(gc: Collector) -> None:
    assert leave_out()
    assert leave_out()
    take_in()
    assert gc.get_freeze_count()
    take_in()
    assert not gc.get_freeze_count()


def test_what_the_program_has_left_out_stays_out(gc: Collector) -> None:
    gc.freeze()
    assert leave_out()
    take_in()
    assert gc.get_freeze_count()


def test_what_the_program_has_left_out_is_counted_once(gc: Collector) -> None:
    gc.freeze()
    for _ in range(3):
        assert leave_out()
        take_in()
    assert gc.counted == 1


def test_it_can_be_declined(gc: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURINE_DECLINE", "collector")
    assert not leave_out()
    assert not gc.get_freeze_count()
