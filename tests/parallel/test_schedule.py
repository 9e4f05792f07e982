"""Schedules: their grids, what they refuse, and how long devices are idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine.errors import ConfigError
from purine.parallel import (
    SCHEDULES,
    Schedule,
    bubble,
    bubble_formula,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from purine.parallel.schedule import Unit, named_schedule

small = st.integers(1, 6)


@given(name=st.sampled_from(sorted(SCHEDULES)), devices=small, micro=small, chunks=small)
def test_grids_read_back(name: str, devices: int, micro: int, chunks: int) -> None:
    if name == "interleaved":
        schedule = interleaved(devices, devices * micro, chunks)
    else:
        schedule = named_schedule(name, devices, micro)
    assert Schedule.parse(str(schedule)) == schedule
    assert Schedule.parse(schedule.grid({"F": 2, "B": 3, "W": 1})) == schedule


def test_grids_are_the_familiar_ones() -> None:
    assert str(gpipe(2, 3)).splitlines() == [
        "0: F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2",
        "1: .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .",
    ]
    assert str(one_f_one_b(3, 4)).splitlines() == [
        "0: F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3",
        "1: .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .",
        "2: .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .",
    ]
    assert str(zero_bubble(2, 3)).splitlines() == [
        "0: F0 F1 .  B0 W0 F2 B1 W1 B2 W2",
        "1: .  F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]
    assert str(interleaved(2, 2, 2)).splitlines() == [
        "0: 0F0 0F1 2F0 2F1 .   .   2B0 2B0 .   2B1 2B1 0B0 0B0 0B1 0B1",
        "1: .   1F0 1F1 3F0 3B0 3B0 3F1 3B1 3B1 1B0 1B0 1B1 1B1 .   .",
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (2, 2), (2, 7), (4, 4), (4, 9), (8, 16)])
def test_idle_time_is_that_of_the_formula(name: str, stages: int, micro: int) -> None:
    found = bubble(named_schedule(name, stages, micro))
    assert found == pytest.approx(bubble_formula(name, stages, micro))


@pytest.mark.parametrize(("devices", "micro", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 3)])
def test_chunks_shorten_idle_time(devices: int, micro: int, chunks: int) -> None:
    found = bubble(interleaved(devices, micro, chunks))
    formula = bubble_formula("interleaved", devices, micro, chunks=chunks)
    assert found == pytest.approx(formula)
    assert found < bubble(one_f_one_b(devices, micro))


def test_what_stages_hold() -> None:
    assert gpipe(4, 8).held() == (8, 8, 8, 8)
    assert one_f_one_b(4, 8).held() == (4, 3, 2, 1)
    assert max(zero_bubble(4, 8).held()) == 4


def test_stages_of_chunks_go_around() -> None:
    schedule = interleaved(2, 4, 3)
    assert (schedule.devices, schedule.stages, schedule.micro) == (2, 6, 4)
    assert schedule.homes == (0, 1, 0, 1, 0, 1)


def test_units_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(ConfigError, match="wait for each other") as caught:
        Schedule.parse("0: F0 B0 F1 B1\n1: F0 F1 B0 B1")
    assert caught.value.found == "0B0 waits for 1B0 waits for 1F1 waits for 0F1 waits for 0B0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no units"),
        ("0: F0 B0\n1: F0", "there is no 1B0"),
        ("0: F0 F1 B0", "there is no 0B1"),
        ("0: F0 B0 F0", "0F0 comes twice"),
        ("0: F1 F0 B0 B1", "out of order"),
        ("0: F0 B0 W0\n1: F0 B0", "there is no 1W0"),
        ("0: 0F0 1B0\n1: 1F0 0B0", "is on two devices"),
        ("0: F0 X0", "no grid"),
        ("1: F0 B0", "no grid"),
        ("0: B0 F0", "wait for each other"),
    ],
)
def test_wrong_grids(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule.parse(text)


def test_stages_without_numbers_between_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        Schedule(((Unit("F", 0, 1), Unit("B", 0, 1)),))


def test_no_stages() -> None:
    with pytest.raises(ConfigError, match="stages is 0"):
        gpipe(0, 1)
