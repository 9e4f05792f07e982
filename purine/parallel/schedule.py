"""Schedules of pipelines: the order of micro-batches and stages on each device.

A schedule is a value that prints as the familiar grid and reads back from it. One that cannot run,
because a unit is missing or because units wait for each other, is refused when it is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from purine.arguments import at_least, checked
from purine.errors import ConfigError
from purine.nearest import unknown_name

Letter: TypeAlias = Literal["F", "B", "W"]
"""Forward, backward, and gradients of weights where these wait: B is then the rest of backward."""
_FB: tuple[Letter, ...] = ("F", "B")

_CELL = re.compile(r"(?P<stage>\d+)?(?P<letter>[FBW])(?P<micro>\d+)")


@dataclass(frozen=True, slots=True)
class Unit:
    """One stage's forward or backward of one micro-batch."""

    letter: Letter
    micro: int
    stage: int

    def __str__(self) -> str:
        return f"{self.stage}{self.letter}{self.micro}"


@dataclass(frozen=True)
class Schedule:
    """For each device its units, in order.

    Where device k has stage k a cell of the grid is `F0` (the forward of micro-batch 0); where
    devices have several stages it is `2F0`, with the stage before it.

    >>> print(one_f_one_b(2, 3))
    0: F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
    1: .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
    >>> Schedule.parse(str(one_f_one_b(2, 3))) == one_f_one_b(2, 3)
    True
    """

    rows: tuple[tuple[Unit, ...], ...]

    def __post_init__(self) -> None:
        _refuse_wrong_units(self)
        cycle = _cycle(self)
        if cycle:
            expected = "units of every device after those they wait for"
            found = " waits for ".join(map(str, (*cycle, cycle[0])))
            remedy = "move one of them to another place in its row"
            raise _wrong("its units wait for each other", expected, found, remedy)

    def __str__(self) -> str:
        return self.grid()

    @cached_property
    def device_of(self) -> Mapping[Unit, int]:
        """The row of each unit."""
        return {unit: device for device, row in enumerate(self.rows) for unit in row}

    @property
    def devices(self) -> int:
        return len(self.rows)

    @cached_property
    def stages(self) -> int:
        return 1 + max(unit.stage for unit in self.device_of)

    @cached_property
    def micro(self) -> int:
        """The number of micro-batches."""
        return 1 + max(unit.micro for unit in self.device_of)

    @cached_property
    def split(self) -> bool:
        """Whether gradients of weights are units of their own."""
        return any(unit.letter == "W" for unit in self.device_of)

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """The device of each stage."""
        homes = {unit.stage: device for unit, device in self.device_of.items()}
        return tuple(homes[stage] for stage in range(self.stages))

    def needs(self, unit: Unit) -> tuple[Unit, ...]:
        """The units that a unit waits for, on any device."""
        letter, micro, stage = unit.letter, unit.micro, unit.stage
        if letter == "F":
            return (Unit("F", micro, stage - 1),) if stage else ()
        if letter == "W":
            return (Unit("B", micro, stage),)
        if stage == self.stages - 1:
            return (Unit("F", micro, stage),)
        return Unit("F", micro, stage), Unit("B", micro, stage + 1)

    def times(self, durations: Mapping[str, int] | None = None) -> Mapping[Unit, int]:
        """When each unit starts, where each takes as long as its letter says."""
        lasting = durations or self._durations()
        starts: dict[Unit, int] = {}
        free = [0] * self.devices
        for unit in _in_order(self):
            device = self.device_of[unit]
            ready = (starts[other] + lasting[other.letter] for other in self.needs(unit))
            starts[unit] = max(free[device], *ready, 0)
            free[device] = starts[unit] + lasting[unit.letter]
        return starts

    def held(self) -> tuple[int, ...]:
        """For each stage, the most micro-batches whose activations it holds at once.

        >>> gpipe(3, 5).held(), one_f_one_b(3, 5).held()
        ((5, 5, 5), (3, 2, 1))
        """
        last = "W" if self.split else "B"
        now, most = [0] * self.stages, [0] * self.stages
        for row in self.rows:
            for unit in row:
                now[unit.stage] += (unit.letter == "F") - (unit.letter == last)
                most[unit.stage] = max(most[unit.stage], now[unit.stage])
        return tuple(most)

    def grid(self, durations: Mapping[str, int] | None = None) -> str:
        """One row for each device and one column for each slot of time.

        `durations` are the slots that F, B and W take: 1, 2 where there is no W, else 1, 1, 1.
        """
        lasting = durations or self._durations()
        starts, end = self.times(lasting), self._end(lasting)
        width = max(len(self.cell(unit)) for unit in starts)
        lines = []
        for device, row in enumerate(self.rows):
            cells = ["."] * end
            for unit in row:
                start, slots = starts[unit], lasting[unit.letter]
                cells[start : start + slots] = [self.cell(unit)] * slots
            lines.append(f"{device}: " + " ".join(cell.ljust(width) for cell in cells).rstrip())
        return "\n".join(lines)

    def cell(self, unit: Unit) -> str:
        """A unit as the grid shows it."""
        plain = self.stages == self.devices and self.homes == tuple(range(self.stages))
        return f"{unit.letter}{unit.micro}" if plain else str(unit)

    @classmethod
    @checked
    def parse(cls, text: str) -> Schedule:
        """The schedule of a grid: dots are idle, a unit that takes several slots is repeated."""
        rows: list[tuple[Unit, ...]] = []
        for number, line in enumerate(filter(str.strip, text.splitlines())):
            label, colon, cells = line.rpartition(":")
            if colon and label.strip() != str(number):
                raise _unreadable(f"row {label.strip()!r}", f"row {number}")
            units = [_parse_cell(cell, number) for cell in cells.split() if cell.strip(".")]
            # The slots of one unit lie side by side: a unit that comes back later stays twice.
            kept = [u for k, u in enumerate(units) if k == 0 or u != units[k - 1]]
            rows.append(tuple(kept))
        return cls(tuple(rows))

    def _end(self, lasting: Mapping[str, int]) -> int:
        return max(start + lasting[unit.letter] for unit, start in self.times(lasting).items())

    def _durations(self) -> Mapping[str, int]:
        return {"F": 1, "B": 1, "W": 1} if self.split else {"F": 1, "B": 2}


@checked
def gpipe(stages: int, micro: int) -> Schedule:
    """All forwards, then all backwards: every stage holds all micro-batches."""
    return _one_stage_each(stages, micro, ahead=[micro] * stages)


@checked
def one_f_one_b(stages: int, micro: int) -> Schedule:
    """Each stage starts its backward as soon as it can: stage s holds at most `stages - s`
    micro-batches."""
    return _one_stage_each(stages, micro, ahead=range(stages - 1, -1, -1))


def _one_stage_each(stages: int, micro: int, ahead: Sequence[int]) -> Schedule:
    """Stage s is on device s, and does `ahead[s]` forwards before its first backward."""
    _at_least_one(stages=stages, micro=micro)
    rows = []
    for stage in range(stages):
        forwards, backwards = ([Unit(letter, m, stage) for m in range(micro)] for letter in _FB)
        rows.append(tuple(_alternating(forwards, backwards, ahead=ahead[stage])))
    return Schedule(tuple(rows))


@checked
def interleaved(devices: int, micro: int, chunks: int) -> Schedule:
    """Each device has `chunks` stages, stage s being on device `s % devices`: less time is idle.

    Micro-batches pass in groups of as many as there are devices.
    """
    _at_least_one(devices=devices, micro=micro, chunks=chunks)
    if chunks == 1:
        return one_f_one_b(devices, micro)
    if micro % devices:
        what = f"{micro} micro-batches cannot be interleaved over {devices} devices"
        remedy = f"use {(micro // devices + 1) * devices} micro-batches, or schedule 1f1b"
        raise ConfigError(what, f"a multiple of {devices} micro-batches", str(micro), remedy)
    rows = []
    for device in range(devices):
        forwards, backwards = [], []
        for number in range(micro * chunks):
            group, rest = divmod(number, devices * chunks)
            chunk, within = divmod(rest, devices)
            m = group * devices + within
            forwards.append(Unit("F", m, chunk * devices + device))
            backwards.append(Unit("B", m, (chunks - 1 - chunk) * devices + device))
        ahead = 2 * (devices - device - 1) + (chunks - 1) * devices
        rows.append(tuple(_alternating(forwards, backwards, ahead=ahead)))
    return Schedule(tuple(rows))


@checked
def zero_bubble(stages: int, micro: int) -> Schedule:
    """As 1f1b, with gradients of weights delayed into time that would be idle (ZB-H1).

    Stage s delays those of s micro-batches, so that no stage holds more than `stages` of them.
    """
    _at_least_one(stages=stages, micro=micro)
    rows = []
    for stage, row in enumerate(one_f_one_b(stages, micro).rows):
        units: list[Unit] = []
        for unit in row:
            units.append(unit)
            if unit.letter == "B" and unit.micro >= stage:
                units.append(Unit("W", unit.micro - stage, stage))
        units += [Unit("W", m, stage) for m in range(max(0, micro - stage), micro)]
        rows.append(tuple(units))
    return Schedule(tuple(rows))


SCHEDULES: Mapping[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": lambda devices, micro, chunks: gpipe(devices, micro),
    "1f1b": lambda devices, micro, chunks: one_f_one_b(devices, micro),
    "interleaved": interleaved,
    "zero-bubble": lambda devices, micro, chunks: zero_bubble(devices, micro),
}
"""By name, the schedule for so many devices, micro-batches, and stages of each device."""


def named_schedule(name: str, devices: int, micro: int, *, chunks: int = 1) -> Schedule:
    """A schedule by its name; only `interleaved` has several stages (`chunks`) on each device."""
    if name not in SCHEDULES:
        remedy = "use one of these, or a Schedule of your own"
        raise unknown_name(ConfigError, "schedule", name, SCHEDULES, remedy=remedy)
    if chunks != 1 and name != "interleaved":
        what = f"schedule {name!r} has one stage on each device"
        remedy = 'use schedule="interleaved" for several'
        raise ConfigError(what, "chunks=1", f"chunks={chunks}", remedy)
    return SCHEDULES[name](devices, micro, chunks)


@checked
def bubble(schedule: Schedule, durations: Mapping[str, int] | None = None) -> float:
    """The fraction of the devices' time that is idle, by simulating the schedule.

    >>> bubble(gpipe(2, 3)), bubble_formula("gpipe", 2, 3)
    (0.25, 0.25)
    """
    lasting = durations or schedule._durations()
    busy = sum(lasting[unit.letter] for unit in schedule.device_of)
    return 1 - busy / (schedule._end(lasting) * schedule.devices)


@checked
def bubble_formula(name: str, devices: int, micro: int, *, chunks: int = 1) -> float:
    """The textbook idle fraction of a named schedule, for at least as many micro-batches.

    Backward takes twice as long as forward, half of it for the gradients of weights.
    """
    named_schedule(name, 1, 1, chunks=chunks)
    work = {"interleaved": micro * chunks, "zero-bubble": 3 * micro}.get(name, micro)
    return (devices - 1) / (work + devices - 1)


def _alternating(forwards: list[Unit], backwards: list[Unit], *, ahead: int) -> Iterator[Unit]:
    """Some forwards ahead, then one of each in turn, then the remaining backwards."""
    ahead = min(ahead, len(forwards))
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - ahead :]


def _in_order(schedule: Schedule) -> list[Unit]:
    """The units in an order in which each comes after those it waits for, without cycles."""
    rows, device_of = schedule.rows, schedule.device_of
    done: set[Unit] = set()
    order: list[Unit] = []
    position = [0] * len(rows)
    active = list(range(len(rows)))
    while active:
        device = active.pop()
        while position[device] < len(rows[device]):
            unit = rows[device][position[device]]
            if not done.issuperset(schedule.needs(unit)):
                break
            position[device] += 1
            done.add(unit)
            order.append(unit)
            m, s = unit.micro, unit.stage
            for other in (Unit("F", m, s + 1), Unit("B", m, s - 1)):
                if other in device_of and device_of[other] not in (device, *active):
                    active.append(device_of[other])
    return order


def _cycle(schedule: Schedule) -> list[Unit]:
    """Units each of which waits for the next, and the last for the first; none if all can run."""
    done = set(_in_order(schedule))
    before = {unit: other for row in schedule.rows for other, unit in pairwise(row)}
    unit = next((unit for row in schedule.rows for unit in row if unit not in done), None)
    path: list[Unit] = []
    while unit is not None and unit not in path:
        path.append(unit)
        waits = [*schedule.needs(unit), *([before[unit]] if unit in before else [])]
        unit = next(other for other in waits if other not in done)
    return path[path.index(unit) :] if unit is not None else []


def _refuse_wrong_units(schedule: Schedule) -> None:
    units = [unit for row in schedule.rows for unit in row]
    if not units:
        raise _wrong("it has no units", "at least F0 and B0", "none")
    home: dict[int, int] = {}
    for unit, device in schedule.device_of.items():
        if home.setdefault(unit.stage, device) != device:
            what, both = f"stage {unit.stage} is on two devices", f"{home[unit.stage]} and {device}"
            raise _wrong(what, "all units of a stage on one device", f"devices {both}")
    if len(set(units)) != len(units):
        twice = next(unit for unit in units if units.count(unit) > 1)
        raise _wrong(f"{twice} comes twice", "every unit once", "it twice")
    letters: tuple[Letter, ...] = (*_FB, "W") if schedule.split else _FB
    stages, micro = range(schedule.stages), range(schedule.micro)
    for unit in (Unit(letter, m, stage) for stage in stages for letter in letters for m in micro):
        if unit not in schedule.device_of:
            expected = f"{' and '.join(letters)} of micro-batches 0 to {schedule.micro - 1} in "
            expected += f"stages 0 to {schedule.stages - 1}"
            missing = f"no {unit} (stage {unit.stage}, micro-batch {unit.micro})"
            raise _wrong(f"there is no {unit}", expected, missing)
    latest: dict[int, int] = {}
    for unit in units:
        if unit.letter == "F":
            following = latest.get(unit.stage, -1) + 1
            if unit.micro != following:
                what = f"stage {unit.stage} takes micro-batches out of order"
                raise _wrong(what, f"F{following} next", schedule.cell(unit))
            latest[unit.stage] = unit.micro


def _wrong(what: str, expected: str, found: str, remedy: str | None = None) -> ConfigError:
    what = f"the schedule cannot be run: {what}"
    remedy = remedy or "correct the grid, or use one of " + ", ".join(SCHEDULES)
    return ConfigError(what, expected, found, remedy)


def _parse_cell(cell: str, device: int) -> Unit:
    match = _CELL.fullmatch(cell)
    if not match:
        expected = "cells such as F0, B0, W0, 2F0 or a dot"
        raise _unreadable(f"cell {cell!r} in row {device}", expected)
    stage = device if match["stage"] is None else int(match["stage"])
    letter: Letter = next(item for item in get_args(Letter) if item == match["letter"])
    return Unit(letter, int(match["micro"]), stage)


def _unreadable(found: str, expected: str) -> ConfigError:
    remedy = "write a row for each device: its number, a colon, and its cells"
    return ConfigError("the text is no grid of a schedule", expected, found, remedy)


def _at_least_one(**numbers: int) -> None:
    for name, value in numbers.items():
        at_least(name, value, 1)
