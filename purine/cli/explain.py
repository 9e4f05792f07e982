"""`purine explain`: a recorded run beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument
from purine.errors import ConfigError

__all__ = ["explain"]


def explain(
    run: Annotated[Path, argument("A run that was trained with --trace.", metavar="RUN")],
    from_trace: Annotated[
        Path | None, typer.Option(metavar="RUN|FILE", help="Times of ops, from another run.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The machine's profile.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 10,
) -> None:
    """Compare a recorded run with its prediction, op by op.

    The prediction takes times from the profile that `purine calibrate` measured, or from the trace
    of another run. Ops of all devices that come from one op of the net are added up.

    \b
    purine train --net lenet --devices cpu:0-1 --trace --out runs/b
    purine explain runs/b
    purine explain runs/b --from-trace runs/a
    """
    from purine.analysis.cost import load_profile
    from purine.job.explain import explain as compared
    from purine.job.foresee import read_source

    recorded = read_source(run)
    if recorded.plan is None:
        what, remedy = "this trace has no job beside it", "name the folder of the run"
        raise ConfigError(what, "a run folder with its config.yaml", str(run), remedy, where=run)
    source = None if from_trace is None else read_source(from_trace)
    known = None if profile is None else load_profile(profile)
    explained = compared(recorded.plan, recorded.trace, source=source, profile=known)
    typer.echo(explained.text(top), nl=False)
