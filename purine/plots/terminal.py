"""A plot in a terminal: in dots of braille, eight to a character, or in stars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from purine.plots.curves import Panel, Plot, Point, smoothed
from purine.plots.ticks import Axis

__all__ = ["Line", "Piece", "drawn"]

Piece: TypeAlias = tuple[str, int | None]
"""Text, and the number of the curve whose colour it has (None: of no curve)."""
Line: TypeAlias = list[Piece]

_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800


@dataclass
class _Canvas:
    """Dots in cells; a cell has the colour of the last curve that drew into it."""

    width: int
    height: int
    braille: bool

    def __post_init__(self) -> None:
        self.bits = [[0] * self.width for _ in range(self.height)]
        self.marks: dict[tuple[int, int], int] = {}
        self.owner: list[list[int | None]] = [[None] * self.width for _ in range(self.height)]

    def dot(self, x: int, y: int, curve: int) -> None:
        """Set the dot at (x, y), counted from the lower left in units of dots."""
        row, down = divmod(4 * self.height - 1 - y, 4)
        column, aside = divmod(x, 2)
        self.bits[row][column] |= _BITS[down][aside]
        self.owner[row][column] = curve

    def line(self, start: tuple[int, int], end: tuple[int, int], curve: int) -> None:
        (x, y), (last_x, last_y) = start, end
        steps = max(abs(last_x - x), abs(last_y - y), 1)
        for step in range(steps + 1):
            part = step / steps
            self.dot(round(x + (last_x - x) * part), round(y + (last_y - y) * part), curve)

    def mark(self, x: int, y: int, curve: int) -> None:
        self.marks[self.height - 1 - y // 4, x // 2] = curve

    def row(self, row: int) -> Line:
        """The pieces of a line of text; neighbours of one colour are one piece."""
        pieces: Line = []
        for column in range(self.width):
            bits, owner = self.bits[row][column], self.owner[row][column]
            char = chr(_BRAILLE + bits) if self.braille and bits else "*" if bits else " "
            if (row, column) in self.marks:
                char, owner = "●" if self.braille else "o", self.marks[row, column]
            if pieces and pieces[-1][1] == owner:
                pieces[-1] = (pieces[-1][0] + char, owner)
            else:
                pieces.append((char, owner))
        return pieces


def drawn(plot: Plot, *, width: int, height: int, braille: bool = True) -> list[Line]:
    """The lines of a plot in `width` columns; a panel has `height` lines above its axis."""
    lines: list[Line] = [[(plot.title, None)], []]
    for panel in plot.panels:
        across = panel.across(plot.panels, max(2, width // 14))
        lines += _panel(panel, across, plot, width, height, braille)
        lines.append([])
    return lines[:-1]


def _panel(
    panel: Panel, across: Axis, plot: Plot, width: int, height: int, braille: bool
) -> list[Line]:
    upright = panel.upright(max(2, height // 3))
    margin = max(map(len, upright.labels), default=1)
    canvas = _Canvas(max(10, width - margin - 2), height, braille)

    def at(point: Point) -> tuple[int, int]:
        x, y = across.place(point[0]), upright.place(point[1])
        return round(x * (2 * canvas.width - 1)), round(y * (4 * height - 1))

    positive = 0.0 if panel.log else float("-inf")
    for index, curve in enumerate(panel.curves):
        points = [point for point in curve.points if point[1] > positive]
        places = [at(point) for point in smoothed(points, plot.window)]
        for start, end in zip(places, places[1:] or places, strict=False):
            canvas.line(start, end, index)
    for index, curve in enumerate(panel.curves):
        for point in curve.marks:
            if point[1] > positive:
                canvas.mark(*at(point), index)
    label_of = {
        height - 1 - at((0.0, tick))[1] // 4: label
        for tick, label in zip(upright.ticks, upright.labels, strict=True)
    }
    bar, corner, dash = ("│", "└", "─") if braille else ("|", "+", "-")
    lines: list[Line] = [[(f"{panel.title} over {plot.across}", None)]]
    for row in range(height):
        lines.append([(f"{label_of.get(row, ''):>{margin}} {bar}", None), *canvas.row(row)])
    lines.append([(" " * (margin + 1) + corner + dash * canvas.width, None)])
    lines.append([(" " * (margin + 2) + _scale(across, canvas.width), None)])
    return lines


def _scale(across: Axis, width: int) -> str:
    """The line of ticks below a panel."""
    text = [" "] * width
    for tick, label in zip(across.ticks, across.labels, strict=True):
        start = round(across.place(tick) * (width - 1)) - len(label) // 2
        start = max(0, min(start, width - len(label)))
        if all(char == " " for char in text[max(0, start - 1) : start + len(label) + 1]):
            text[start : start + len(label)] = label
    return "".join(text).rstrip()
