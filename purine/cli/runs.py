"""`purine runs` and `purine compare`: runs side by side, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.parameters import argument
from purine.errors import PurineError

if TYPE_CHECKING:
    from purine.job.compare import Comparison
    from purine.job.history import History

__all__ = ["compare", "runs"]

Format = StrEnum("Format", ["table", "json"])
"""The forms of a list of runs."""

_FILES = ("net", "test_net", "data", "weights", "mean_file", "solver")
"""Options whose value may be a path."""
_WIDEST = 32  # characters of a cell


def runs(
    folder: Annotated[Path, argument("The folder that has runs in it.")] = Path("runs"),
    format: Annotated[Format, typer.Option(help="A table, or one JSON object.")] = Format.table,
) -> None:
    """List the runs in a folder and below it: the settings in which they differ, and their results.

    A run that cannot be read is reported on stderr, and the exit code is then 2.

    \b
    purine runs
    purine runs experiments --format json
    """
    from purine.job.history import find_runs, read_history

    histories = []
    folders = find_runs(folder)
    for path in folders:
        try:
            histories.append(read_history(path))
        except PurineError as error:
            typer.echo(f"error: {error}", err=True)
    if histories:
        typer.echo(_as_json(histories) if format is Format.json else _listed(histories))
    if len(histories) < len(folders):
        raise typer.Exit(2)


def _listed(histories: Sequence[History]) -> str:
    from purine.job.history import differing, short_names
    from purine.trace.tables import as_table

    names = differing(histories)
    head = [
        "run",
        *names,
        "iterations",
        "loss",
        "test loss",
        "accuracy",
        "images/s",
        "when",
        "state",
    ]
    rows = [tuple(head)]
    labels = short_names([history.path for history in histories])
    for label, history in zip(labels, histories, strict=True):
        settings = [_setting(name, history.options.get(name)) for name in names]
        results = [
            str(history.iterations),
            *map(_number, (history.loss, history.test("test_loss"), history.test("test_accuracy"))),
            "-" if history.speed is None else f"{history.speed:,.0f}",
            f"{history.changed:%Y-%m-%d %H:%M}",
            history.state,
        ]
        rows.append((label, *settings, *results))
    common = "all" if len(histories) > 1 else "with"
    table = as_table(rows, left=1 + len(names), indent="")
    return f"{table}\n\n{common}: {_common(histories[0], names)}"


def _common(history: History, differing: Sequence[str]) -> str:
    """The line about the settings that all runs share: the most informative of them."""
    shown = ("net", "data", "solver", "batch", "lr", "devices", "parallel", "precision", "seed")
    options = history.options
    pairs = ((name, options.get(name)) for name in shown if name not in differing)
    return ", ".join(
        f"{name} {_setting(name, value)}" for name, value in pairs if value is not None
    )


def _as_json(histories: Sequence[History]) -> str:
    from json import dumps

    return dumps(
        {
            "runs": [
                {
                    "path": str(history.path),
                    "state": history.state,
                    "changed": history.changed.isoformat(timespec="seconds"),
                    "iterations": history.iterations,
                    "loss": history.loss,
                    "test_loss": history.test("test_loss"),
                    "test_accuracy": history.test("test_accuracy"),
                    "images_per_second": history.speed,
                    "options": dict(history.options),
                }
                for history in histories
            ]
        }
    )


def compare(
    first: Annotated[Path, argument("The folder of a run.", metavar="A")],
    second: Annotated[Path, argument("The folder of another one.", metavar="B")],
    top: Annotated[int, typer.Option(min=1, help="Kinds in the table of times.")] = 10,
    format: Annotated[Format, typer.Option(help="Tables, or one JSON object.")] = Format.table,
) -> None:
    """Show how two runs differ: in settings, in numbers, and in time.

    Losses are compared in the iterations that both have in metrics.jsonl. Times by kind need the
    traces of both (purine train --trace).

    \b
    purine compare runs/a runs/b
    """
    from purine.job.compare import compare
    from purine.job.history import read_history

    comparison = compare(read_history(first), read_history(second))
    typer.echo(_compared_json(comparison) if format is Format.json else _compared(comparison, top))


def _compared(pair: Comparison, top: int) -> str:
    from purine.job.history import short_names
    from purine.trace.tables import as_table, as_time

    labels = short_names([pair.first.path, pair.second.path])
    settings = [
        (name, _setting(name, one), _setting(name, two))
        for name, (one, two) in pair.settings.items()
    ]
    sections = ["settings: the same"]
    if settings:
        sections = [f"settings\n{as_table([('', *labels), *settings], left=3)}"]
    numbers = [
        (name, _number(one), _number(two), _factor(one, two))
        for name, (one, two) in pair.numbers.items()
        if (one, two) != (None, None)
    ]
    sections.append(f"results\n{as_table([('', *labels, 'B/A'), *numbers], left=1)}")
    sections.append(_losses(pair))
    if pair.steps is not None:
        rows = [("kind", *labels, "B/A")]
        times = [("a whole step", pair.steps), *((row.kind, row.times) for row in pair.kinds[:top])]
        rows += [(name, *map(as_time, both), _factor(*both)) for name, both in times]
        left = len(pair.kinds) - top
        more = f"\n  and {left} more kinds, which differ less" if left > 0 else ""
        sections.append(f"time of an iteration\n{as_table(rows, left=1)}{more}")
    else:
        missing = [
            str(history.path)
            for history in (pair.first, pair.second)
            if not (history.path / "trace.json").is_file()
        ]
        why = f"no trace in {' and '.join(missing)}" if missing else "a trace without iterations"
        sections.append(f"time by kind: {why}")
    return "\n\n".join(sections)


def _losses(pair: Comparison) -> str:
    if not pair.common:
        return "losses: no iteration that both runs logged"
    if pair.parting is None:
        return f"losses: equal in every bit in the {pair.common} iterations that both wrote"
    one, two = pair.parting.losses
    at = pair.parting.iteration
    return (
        f"losses: they differ from iteration {at} on, the first that differs: {one!r} and {two!r}"
    )


def _compared_json(pair: Comparison) -> str:
    from json import dumps

    parting = pair.parting
    apart = None if parting is None else {"iteration": parting.iteration, "losses": parting.losses}
    return dumps(
        {
            "runs": [str(pair.first.path), str(pair.second.path)],
            "settings": pair.settings,
            "numbers": pair.numbers,
            "common_iterations": pair.common,
            "losses_differ": apart,
            "nanoseconds_per_iteration": pair.steps,
            "nanoseconds_by_kind": {row.kind: row.times for row in pair.kinds},
        }
    )


def _setting(name: str, value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if name in _FILES and text.startswith("/"):
        text = "/".join(Path(text).parts[-2:])
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        str(value)
        if isinstance(value, int)
        else f"{value:,.4f}"
        if value < 1e3
        else f"{value:,.0f}"
    )


def _factor(one: float | None, two: float | None) -> str:
    return "" if not one or two is None else f"{two / one:.3f}"
