"""`purine plot`: loss and accuracy of runs, as a picture or in the terminal."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.parameters import argument, given
from purine.errors import ConfigError

if TYPE_CHECKING:
    from purine.plots.curves import Plot

__all__ = ["plot", "refuse_other_suffix"]

Across = StrEnum("Across", ["iterations", "seconds"])
"""What a plot may have across."""

_MOST = 32  # runs in a plot


def plot(
    runs: Annotated[list[Path], argument("Folders of runs.", metavar="RUN")],
    out: Annotated[
        Path | None, given("Write an SVG picture here.", metavar="FILE", shown="the terminal")
    ] = None,
    x: Annotated[Across, typer.Option("--x", help="The horizontal axis.")] = Across.iterations,
    smooth: Annotated[
        int | None,
        given("Lines of metrics to average; 1 for none.", shown="a 25th of them", min=1),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis for the loss.")] = False,
    width: Annotated[
        int | None, given("Columns in the terminal.", shown="its own", min=30, max=400)
    ] = None,
) -> None:
    """Draw loss and accuracy of one or several runs; dots are tests.

    A picture has the raw losses behind their means. It follows the reader's light or dark mode, and
    holds its numbers as text for screen readers.

    \b
    purine plot runs/a
    purine plot runs/a runs/b --out curves.svg
    purine plot runs/a --log --x seconds
    """
    from purine.files import write_whole
    from purine.job.curves import curves_of
    from purine.job.history import read_history
    from purine.plots.picture import picture

    if len(runs) > _MOST:
        what, found = f"{len(runs)} runs are too many for one plot", str(len(runs))
        raise ConfigError(what, f"at most {_MOST}", found, "name fewer, or see purine runs")
    histories = [read_history(run) for run in runs]
    curves = curves_of(histories, across=x.value, log=log, window=smooth)
    if out is None:
        _show(curves, width)
    else:
        refuse_other_suffix(out, ".svg")
        write_whole(out, picture(curves))
        typer.echo(f"{out}: {len(runs)} run{'s' if len(runs) > 1 else ''}")


def refuse_other_suffix(path: Path, *suffixes: str) -> None:
    """Refuse a file whose name says that it holds something else."""
    if path.suffix.lower() not in suffixes:
        what = f"a file of type {path.suffix or 'unknown'} cannot be written here"
        expected = f"a name that ends in {' or '.join(suffixes)}"
        remedy = f"write --out {path.with_suffix(suffixes[0]).name if path.name else suffixes[0]}"
        raise ConfigError(what, expected, path.name or "no name", remedy, where=path)


def _show(plot: Plot, width: int | None) -> None:
    """Print a plot. Without colours each run has a plot of its own, so that they are told apart."""
    from rich.console import Console
    from rich.text import Text

    from purine.plots.terminal import drawn

    console = Console(highlight=False, soft_wrap=True, width=width)
    columns = min(width or console.width, 400)
    braille = _can_write("⠿●│─└")
    coloured = console.is_terminal and console.color_system is not None
    for one in [plot] if coloured else plot.apart():
        for line in drawn(one, width=columns, height=12, braille=braille):
            console.print(Text.assemble(*((text, _style(curve)) for text, curve in line)))
        if len(one.labels) > 1:
            line_mark = "━" if braille else "-"
            names = ((f"{line_mark} {name}  ", _style(k)) for k, name in enumerate(one.labels))
            console.print(Text.assemble(*names))
        console.print()
    for sentence in plot.sentences():
        console.print(Text(sentence))


_STYLES = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_green")


def _style(curve: int | None) -> str:
    return "" if curve is None else _STYLES[curve % len(_STYLES)]


def _can_write(text: str) -> bool:
    if os.environ.get("TERM", "").lower() == "dumb":
        return False
    try:
        text.encode(sys.stdout.encoding or "utf-8", "strict")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
