"""`purine test` and `purine infer`: a trained net on data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.parameters import argument, given
from purine.cli.plot import refuse_other_suffix
from purine.errors import ConfigError

if TYPE_CHECKING:
    from purine.job.predictions import Confusion

__all__ = ["infer", "measure"]

_TABLE = 20  # classes of a table in the terminal
_WORST = 5


def measure(
    run: Annotated[Path, argument("The folder of a run.")],
    data: Annotated[
        str | None, given("Other data of the same form.", shown="that of the run")
    ] = None,
    checkpoint: Annotated[
        int | None, given("The iteration of a checkpoint.", shown="the newest one")
    ] = None,
    confusion: Annotated[
        bool, typer.Option("--confusion", help="Print the confusion matrix.")
    ] = False,
    out: Annotated[
        Path | None, given("With --confusion: also a picture, as SVG.", metavar="FILE")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a run's net on test data: loss and accuracy, and which classes it confuses.

    \b
    purine test runs/a
    purine test runs/a --checkpoint 1000 --json
    purine test runs/a --confusion --out confusion.svg
    """
    from dataclasses import asdict
    from json import dumps

    from purine import job

    if out is not None:
        if not confusion:
            what, expected = "--out has nothing to draw", "--confusion with --out"
            raise ConfigError(what, expected, f"--out {out}", "add --confusion, or leave --out out")
        refuse_other_suffix(out, ".svg")
    folder = job.RunFolder.existing(run)
    table = None
    if confusion:
        from purine.job.predictions import confusion as count_confusions

        table = count_confusions(folder, data=data, iteration=checkpoint)
    result = job.measure(folder, data=data, iteration=checkpoint)
    if table is not None and out is not None:
        _draw(table, out, run)
    if json:
        more = {} if table is None else {"confusion": table.counts.tolist()}
        typer.echo(dumps(asdict(result) | more))
        return
    results = (("accuracy", result.accuracy), ("loss", result.loss))
    numbers = ", ".join(f"{name} {value:.4f}" for name, value in results if value is not None)
    on = f"on {result.samples} samples of {result.data} after {result.iteration} iterations"
    typer.echo(f"{numbers} {on}")
    if table is not None:
        typer.echo(f"\n{_confusion_text(table)}")


def _draw(table: Confusion, out: Path, run: Path) -> None:
    from purine.files import write_whole
    from purine.plots.matrix import confusion_picture

    title = f"{run.resolve().name}: accuracy {table.accuracy:.4f} on {table.samples} samples"
    words = [f"{table.counts.shape[0]} classes of {table.data}.", *_worst(table)]
    write_whole(out, confusion_picture(table.counts.tolist(), title, " ".join(words)))


def _confusion_text(table: Confusion) -> str:
    """The table with a row for each class, or the worst classes of many; then the worst pairs."""
    from purine.trace.tables import as_table

    classes = len(table.counts)
    order = list(range(classes))
    taken: list[str] = [str(number) for number in order]
    note = "classes in rows, what they were taken for in columns\n"
    if classes > _TABLE:
        order.sort(key=lambda number: table.of_class(number)[1] or 0.0)
        order, taken = order[:_TABLE], []
        note = f"the {_TABLE} of {classes} classes that were found least\n"
    rows = [("class", *taken, "samples", "found", "right")]
    for number in order:
        own, recall, right = table.of_class(number)
        counts = [str(count) if count else "." for count in table.counts[number]] if taken else []
        shares = ("-" if share is None else f"{share:.1%}" for share in (recall, right))
        rows.append((str(number), *counts, str(own), *shares))
    lines = [note + as_table(rows, left=0, indent=""), "", *_worst(table)]
    if table.left_out:
        lines.append(f"{table.left_out} without a class are left out")
    return "\n".join(lines)


def _worst(table: Confusion) -> list[str]:
    """The pairs of classes that were confused most often, in words."""
    pairs = table.worst(_WORST)
    if not pairs:
        return ["No class was taken for another."]
    return [
        f"class {one} taken for {two}: {count} of {table.of_class(one)[0]} samples "
        f"({count / table.of_class(one)[0]:.1%})"
        for one, two, count in pairs
    ]


def infer(
    run: Annotated[Path, argument("The folder of a run.")],
    data: Annotated[
        str | None,
        given("Data of the same form; its test part if it has one.", shown="that of the run"),
    ] = None,
    out: Annotated[
        Path | None,
        given("Write here: .csv, or .npz for numpy.", metavar="FILE", shown="CSV on the terminal"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of likeliest classes to write.")] = 1,
    checkpoint: Annotated[
        int | None, given("The iteration of a checkpoint.", shown="the newest one")
    ] = None,
) -> None:
    """Write what a run's net predicts: index, class and probability of every sample, in order.

    \b
    purine infer runs/a --data digits.npz --out predictions.csv
    purine infer runs/a --top 5 --out predictions.npz
    """
    if out is not None:
        refuse_other_suffix(out, ".csv", ".npz")
    from purine.files import write_whole
    from purine.job import RunFolder
    from purine.job.predictions import infer

    predicted = infer(RunFolder.existing(run), data=data, iteration=checkpoint, top=top)
    if out is None:
        typer.echo(predicted.as_csv(), nl=False)
        return
    write_whole(out, predicted.as_npz() if out.suffix.lower() == ".npz" else predicted.as_csv())
    samples = f"{len(predicted.classes)} samples of {predicted.data}"
    typer.echo(f"{out}: predictions for {samples} after {predicted.iteration} iterations")
