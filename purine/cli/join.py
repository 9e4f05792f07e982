"""`purine join` and `purine leave`: workers join and leave a running job on several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument, given

__all__ = ["join", "leave"]


def join(
    run: Annotated[Path, argument("The folder of a run of workers on several hosts.")],
    transport: Annotated[
        str | None, given("Transport to the server: shm, tcp or torchdist.")
    ] = None,
    threads: Annotated[int | None, given("Threads per kernel.", metavar="N")] = None,
) -> None:
    """Train as a worker of a running job, until it ends or Ctrl-C.

    The worker takes a free seat: that of a worker that left or died, or of a host that --devices
    names and that was not started. If there is none, it waits. The folder must be on a file system
    that both hosts share. The default transport is that of the job; shm works on one machine only.

    \b
    purine join runs/a
    purine join runs/a --transport tcp --threads 4
    """
    from purine.cli.progress import join_job

    code = join_job(run, transport, threads)
    if code:
        raise typer.Exit(code)


def leave(
    run: Annotated[Path, argument("The folder of a run of workers on several hosts.")],
    worker: Annotated[int, argument("The number of the worker, as the progress shows it.")],
) -> None:
    """Tell a worker of a running job to send its remaining updates and leave.

    \b
    purine leave runs/a 2
    """
    from purine.job import RunFolder
    from purine.job.hosts import dismiss

    dismiss(RunFolder.existing(run), worker)
    typer.echo(f"worker {worker} of {run} has been told to leave")
