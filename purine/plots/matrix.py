"""A table of confusions as SVG: a square for each pair of classes, darker for more samples."""

from __future__ import annotations

from collections.abc import Sequence

from purine.plots.svg import Svg

__all__ = ["confusion_picture"]

_SIDE = 560.0  # of the whole table, where squares need not be larger
_TEXT = 30.0  # the least side of a square with a number in it
_LEFT, _TOP = 76.0, 74.0


def confusion_picture(counts: Sequence[Sequence[int]], title: str, description: str) -> str:
    """The SVG of a table whose rows are classes and whose columns are what they were taken for."""
    classes = len(counts)
    cell = min(44.0, max(2.0, _SIDE / classes))
    side = cell * classes
    svg = Svg(max(_LEFT + side + 24, 360.0), _TOP + side + 24, title, description)
    svg.style(".wrong{fill:#c8500a}.right{fill:#0068b8}.over{fill:#fff}")
    svg.style("@media (prefers-color-scheme:dark){.wrong{fill:#ff9a57}.right{fill:#58a9f0}")
    svg.style(".over{fill:#14171c}}")
    svg.add("text", title, x=16, y=24, class_="ink bold")
    svg.add("text", "taken for", x=_LEFT + side / 2, y=_TOP - 24, class_="faint middle")
    middle = _TOP + side / 2
    turned = f"rotate(-90 20 {middle:.2f})"
    svg.add("text", "class", x=20, y=middle, class_="faint middle", transform=turned)
    every = max(1, -(-max(14, 9 * len(str(classes))) // int(cell)))
    for number in range(0, classes, every):
        at = (number + 0.5) * cell
        svg.add("text", str(number), x=_LEFT + at, y=_TOP - 8, class_="faint middle")
        svg.add("text", str(number), x=_LEFT - 8, y=_TOP + at + 4, class_="faint end")
    svg.add("rect", x=_LEFT, y=_TOP, width=side, height=side, class_="grid")
    for row, line in enumerate(counts):
        total = sum(line) or 1
        for column, count in enumerate(line):
            if count:
                _square(svg, row, column, count, count / total, cell)
    return svg.text()


def _square(svg: Svg, row: int, column: int, count: int, share: float, cell: float) -> None:
    x, y = _LEFT + column * cell, _TOP + row * cell
    # The root makes rare confusions visible.
    sort, depth, side = "right" if row == column else "wrong", max(0.08, share**0.5), cell - 1
    svg.add("rect", x=x + 0.5, y=y + 0.5, width=side, height=side, class_=sort, fill_opacity=depth)
    if cell >= _TEXT:
        shade = "over" if share > 0.35 else "ink"
        svg.add("text", str(count), x=x + cell / 2, y=y + cell / 2 + 4, class_=f"{shade} middle")
