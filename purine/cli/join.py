"""`purine join` and `purine leave`: workers of a running job on several hosts come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purine.cli.parameters import argument, given

__all__ = ["join", "leave"]


def join(
    run: Annotated[Path, argument("The folder of a run of workers on several hosts.")],
    transport: Annotated[
        str | None, given("How values go to the server and back: shm, tcp or torchdist.")
    ] = None,
    threads: Annotated[int | None, given("Threads that one kernel may use.", metavar="N")] = None,
) -> None:
    """Train as a worker of a job that is going on, until it ends or Ctrl-C.

    The worker takes a seat that is free: that of a worker that left or died, or of a host that was
    named in --devices and not started. It waits while there is none. The folder is on a file system
    that both hosts see. Without --transport it is that of the job; shm is for one machine.

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
    """Tell a worker of a running job to bring what it has learnt and to leave.

    \b
    purine leave runs/a 2
    """
    from purine.job import RunFolder
    from purine.job.hosts import dismiss

    dismiss(RunFolder.existing(run), worker)
    typer.echo(f"worker {worker} of {run} has been told to leave")
