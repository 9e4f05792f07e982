"""A plot as SVG: panels above each other, raw values faint behind their means, tests as dots."""

from __future__ import annotations

from collections.abc import Sequence

from purine.plots.curves import Curve, Panel, Plot, Point, smoothed, thinned
from purine.plots.svg import DASHES, SERIES, Svg, number, text_width
from purine.plots.ticks import Axis

__all__ = ["picture"]

_WIDTH, _PANEL, _GAP = 760.0, 230.0, 34.0
_LEFT, _RIGHT, _BOTTOM = 64.0, 18.0, 44.0
_LABEL = 60  # characters of a label
_MOST = 1600  # points of a line: two for each pixel


def picture(plot: Plot) -> str:
    """The plot as the text of an SVG file."""
    rows = _legend_rows(plot.labels)
    top = 58.0 + 18.0 * len(rows)
    panels = plot.panels
    height = top + len(panels) * (_PANEL + _GAP) - _GAP + _BOTTOM
    svg = Svg(_WIDTH, height, plot.title, " ".join(plot.sentences()))
    svg.add("text", plot.title, x=_LEFT, y=22, class_="ink bold")
    _legend(svg, plot, rows)
    across = panels[0].across(panels, 8)
    for index, panel in enumerate(panels):
        last = index == len(panels) - 1
        _panel(svg, panel, across, top + index * (_PANEL + _GAP), plot.window, labelled=last)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    svg.add("text", plot.across, x=middle, y=height - 8, class_="faint middle")
    return svg.text()


def _classes(index: int) -> str:
    dash = index // len(SERIES) % len(DASHES)
    return f"s{index % len(SERIES)}" + (f" d{dash}" if dash else "")


def _legend_rows(labels: Sequence[str]) -> list[list[tuple[int, str, float]]]:
    """The entries of the legend in lines: number, label, and where it begins."""
    rows: list[list[tuple[int, str, float]]] = [[]]
    x = _LEFT
    for index, label in enumerate(labels):
        label = label if len(label) <= _LABEL else f"...{label[3 - _LABEL :]}"
        width = 26.0 + text_width(label) + 16.0
        if rows[-1] and x + width > _WIDTH - _RIGHT:
            rows.append([])
            x = _LEFT
        rows[-1].append((index, label, x))
        x += width
    return rows


def _legend(svg: Svg, plot: Plot, rows: list[list[tuple[int, str, float]]]) -> None:
    for line, row in enumerate(rows):
        y = 42.0 + 18.0 * line
        for index, label, x in row:
            svg.add("path", d=f"M{number(x)} {number(y - 4)}h20", class_=f"line {_classes(index)}")
            svg.add("text", label, x=x + 26, y=y, class_="ink")
    if any(curve.marks for panel in plot.panels for curve in panel.curves):
        svg.add("circle", cx=_WIDTH - _RIGHT - 34, cy=18, r=4, class_="faint")
        svg.add("text", "test", x=_WIDTH - _RIGHT - 26, y=22, class_="faint")


def _panel(
    svg: Svg, panel: Panel, across: Axis, top: float, window: int | None, *, labelled: bool
) -> None:
    upright = panel.upright(6)
    right, bottom = _WIDTH - _RIGHT, top + _PANEL

    def at(point: Point) -> tuple[float, float]:
        x = _LEFT + across.place(point[0]) * (right - _LEFT)
        return x, bottom - upright.place(point[1]) * _PANEL

    for tick, label in zip(upright.ticks, upright.labels, strict=True):
        y = at((0.0, tick))[1]
        svg.add("path", d=f"M{number(_LEFT)} {number(y)}H{number(right)}", class_="grid")
        svg.add("text", label, x=_LEFT - 8, y=y + 4, class_="faint end")
    for tick, label in zip(across.ticks, across.labels, strict=True):
        x = at((tick, upright.low))[0]
        svg.add("path", d=f"M{number(x)} {number(bottom)}v-5", class_="grid")
        if labelled:
            svg.add("text", label, x=x, y=bottom + 17, class_="faint middle")
    svg.add("path", d=f"M{number(_LEFT)} {number(bottom)}H{number(right)}", class_="grid")
    svg.add("text", panel.title, x=_LEFT, y=top - 7, class_="ink bold")
    shown = [_drawable(curve, log=panel.log) for curve in panel.curves]
    for index, curve in enumerate(shown):
        means = smoothed(curve.points, window)
        if means != curve.points:
            _line(
                svg,
                [at(point) for point in thinned(curve.points, _MOST)],
                f"raw s{index % len(SERIES)}",
            )
        _line(svg, [at(point) for point in thinned(means, _MOST)], f"line {_classes(index)}")
    for index, curve in enumerate(shown):
        for x, y in map(at, curve.marks):
            svg.add("circle", cx=x, cy=y, r=4, class_=f"mark f{index % len(SERIES)}")


def _drawable(curve: Curve, *, log: bool) -> Curve:
    """The curve without values that a logarithmic axis has no place for."""
    if not log:
        return curve
    points, marks = (tuple(p for p in some if p[1] > 0) for some in (curve.points, curve.marks))
    return Curve(curve.label, points, marks)


def _line(svg: Svg, places: Sequence[tuple[float, float]], classes: str) -> None:
    if len(places) == 1:
        (x, y), *_ = places
        svg.add("path", d=f"M{number(x - 3)} {number(y)}h6", class_=classes)
    elif places:
        svg.add(
            "path", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in places), class_=classes
        )
