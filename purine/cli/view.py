"""`purine view`: the page of a run, a net, a trace or a prediction, as one HTML file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.parameters import argument, given
from purine.errors import ConfigError
from purine.files import refuse_own_input, write_whole

if TYPE_CHECKING:
    from purine.viewer.document import Part

__all__ = ["view"]

_MOST = 2


def view(
    what: Annotated[
        list[Path],
        argument("A run, a graph in YAML, or a trace; two to compare.", metavar="RUN..."),
    ],
    out: Annotated[Path | None, given("The file to write.", "--out", "-o", metavar="FILE")] = None,
    predict: Annotated[
        bool,
        typer.Option("--predict", help="Show the prediction for a job (JOB.yaml); nothing runs."),
    ] = False,
    opens: Annotated[
        bool | None,
        given("Open it in a browser.", "--open/--no-open", shown="where there is a terminal"),
    ] = None,
) -> None:
    """Write one HTML file with the graph, timeline, curves, memory and traffic of a run.

    The file needs no network and nothing beside it, so it can be sent to others.

    \b
    purine view runs/a
    purine view runs/a runs/b --out both.html
    purine view net.yaml
    purine view trace.json
    purine view --predict job.yaml
    """
    from purine.viewer.document import document
    from purine.viewer.page import page

    if len(what) > _MOST:
        found = f"{len(what)} of them"
        remedy = "name two; purine plot draws the curves of more"
        raise ConfigError("only two can be compared", "one or two", found, remedy)
    if out is not None:
        refuse_own_input(out, *what)
    text = page(document([_predicted(path) if predict else _part(path) for path in what]))
    file = out if out is not None else _free_file(what[0])
    write_whole(file, text)
    typer.echo(f"wrote {file} ({len(text.encode()) / 1e6:.1f} MB)")
    interactive = sys.stdout.isatty() and bool(
        os.environ.get("DISPLAY") or sys.platform == "darwin"
    )
    if opens or (opens is None and interactive):
        import webbrowser

        webbrowser.open(file.resolve().as_uri())


def _part(path: Path) -> Part:
    """What a path names: a run, a net or a trace."""
    from purine.analysis.infer import check
    from purine.graph import load_yaml
    from purine.viewer.document import of_net, of_run, of_trace

    if path.is_dir():
        return of_run(path)
    if path.suffix == ".json":
        return of_trace(path)
    if path.suffix in (".yaml", ".yml"):
        return of_net(check(load_yaml(path)), str(path))
    what, expected = (
        "this cannot be shown",
        "the folder of a run, a graph in .yaml, or a trace.json",
    )
    found = "a file of another type" if path.exists() else "nothing there"
    raise ConfigError(what, expected, found, "check the path", where=path)


def _predicted(path: Path) -> Part:
    from purine.job.config import merge
    from purine.job.foresee import foresee, refuse_workers
    from purine.job.launch import job_layers
    from purine.job.plan import make_plan
    from purine.viewer.document import of_prediction

    plan = make_plan(replace(merge(*job_layers(path, {})), out=None), elsewhere=True)
    refuse_workers(plan)
    foretold = foresee(plan, memory=False, single=True)
    return of_prediction(plan, str(path), foretold.trace)


def _free_file(path: Path) -> Path:
    """The default path of the page: a temporary file, never inside a run."""
    import tempfile

    stem = path.resolve().stem or "page"
    folder = Path(tempfile.mkdtemp(prefix="purine-"))
    return folder / f"{stem[:80]}.html"
