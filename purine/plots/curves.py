"""Curves: what a plot shows, and how many points are worth drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from purine.plots.ticks import Axis, axis, short

__all__ = ["Curve", "Panel", "Plot", "Point", "smoothed", "thinned"]

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel. `points` are joined, `marks` are single measurements such as tests."""

    label: str
    points: tuple[Point, ...]
    marks: tuple[Point, ...] = ()

    @property
    def all(self) -> tuple[Point, ...]:
        return (*self.points, *self.marks)


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one pair of axes. Curve number k has colour number k in all panels."""

    title: str
    curves: tuple[Curve, ...]
    log: bool = False

    def across(self, every: Sequence[Panel], most: int) -> Axis:
        """The horizontal axis, which all panels of a plot share."""
        values = [x for panel in every for curve in panel.curves for x, _ in curve.all]
        return axis(values, most=most, least=0.0)

    def upright(self, most: int) -> Axis:
        """The vertical axis."""
        values = (y for curve in self.curves for _, y in curve.all)
        if self.log:
            return axis((y for y in values if y > 0), most=most, log=True)
        return axis(values, most=most)


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels above each other, over the same `across`; `window` points are averaged for a line."""

    title: str
    across: str
    panels: tuple[Panel, ...]
    window: int | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(curve.label for curve in self.panels[0].curves)

    def apart(self) -> Iterator[Plot]:
        """A plot for each curve, for where colours do not tell them apart."""
        if len(self.labels) == 1:
            yield self
            return
        for number, label in enumerate(self.labels):
            own = [replace(panel, curves=(panel.curves[number],)) for panel in self.panels]
            panels = tuple(panel for panel in own if panel.curves[0].all)
            if panels:
                yield replace(self, title=label, panels=panels)

    def sentences(self) -> Iterator[str]:
        """What the plot shows, in words."""
        for panel in self.panels:
            for curve in panel.curves:
                parts = []
                if curve.points:
                    (first, start), (last, end) = curve.points[0], curve.points[-1]
                    parts.append(f"{short(start)} at {first:,.10g} to {short(end)} at {last:,.10g}")
                if curve.marks:
                    value = curve.marks[-1][1]
                    parts.append(f"{short(value)} in the last of {len(curve.marks)} tests")
                yield f"{curve.label}: {panel.title} {', '.join(parts) or 'without a value'}."


def smoothed(points: Sequence[Point], window: int | None) -> tuple[Point, ...]:
    """The points with the means of about `window` neighbours (by default a 25th of all).

    Windows are centred, so the line does not lag behind. They are smaller at the start, where
    losses fall fastest, and end with the last point.

    >>> smoothed([(0, 1.0), (1, 3.0), (2, 2.0), (3, 4.0)], 3)
    ((0, 1.0), (1, 2.0), (2, 3.0), (3, 3.0))
    """
    count = len(points)
    half = (max(1, count // 25) if window is None else window) // 2
    if half == 0:
        return tuple(points)
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    result = []
    for number, (x, _) in enumerate(points):
        first = number - min(half, number)
        end = number + min(half, number, count - 1 - number) + 1
        result.append((x, (sums[end] - sums[first]) / (end - first)))
    return tuple(result)


def thinned(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """At most about `most` points: of each run of neighbours the lowest and the highest.

    >>> thinned([(x, (x * 7) % 5) for x in range(8)], 4)
    ((0, 0), (2, 4), (5, 0), (7, 4))
    """
    if len(points) <= most:
        return tuple(points)
    size = -(-2 * len(points) // most)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return tuple(kept)
