"""`purine status`: what the hosts of a running job run or wait for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.parameters import argument
from purine.errors import ConfigError

if TYPE_CHECKING:
    from purine.job.status import Answer

__all__ = ["status"]


def status(
    run: Annotated[Path, argument("The folder of a running job.")],
    wait: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Seconds to wait for answers.")
    ] = 4.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what each host of a running job does, and what it waits for.

    A wait is a chain: op <- blob <- producer <- host. The exit code is 0 if all hosts answered and
    1 if some did not; those are stopped, cut off, or busy. SIGUSR1 makes a host (or all hosts of
    purine launch) print its own status on stderr.

    \b
    purine status runs/a
    purine status runs/a --json
    """
    from dataclasses import asdict
    from json import dumps

    from purine.files import unreadable
    from purine.job import RunFolder
    from purine.job.placing import hosts_of_job
    from purine.job.status import ask

    folder = RunFolder.existing(run)
    hosts = hosts_of_job(folder.read_config())
    if not folder.is_running():
        what, found = "no job is running in this folder", "no process that trains in it"
        remedy = f"start it: purine train --resume --out {shlex.quote(str(folder.path))}; "
        remedy += f"for its results see {folder.metrics_file}"
        raise ConfigError(what, "a job that is running", found, remedy, where=folder.path)
    try:
        answers = ask(folder.path, hosts, seconds=wait)
    except OSError as error:
        what, expected = "cannot ask the hosts", "a folder of the same user that can be written"
        raise unreadable(ConfigError, folder.path, error, expected, what) from error
    if json:
        typer.echo(dumps({"run": str(folder.path), "hosts": [asdict(a) for a in answers]}))
    else:
        typer.echo(_table(answers))
    if not all(answer.fresh for answer in answers):
        raise typer.Exit(1)


def _table(answers: list[Answer]) -> str:
    width = max(len("host"), *(len(answer.host) for answer in answers))
    lines = [f"{'host':<{width}}  iteration  wrote       does"]
    for answer in answers:
        status = answer.status
        if status is None or answer.age is None:
            lines.append(f"{answer.host:<{width}}  {'?':>9}  never       did not answer")
            continue
        does = status.does if answer.fresh else ("did not answer; before:", *status.does)
        first = f"{answer.host:<{width}}  {status.iteration:>9}  {answer.age:>5.1f} s ago"
        lines.append(f"{first} {does[0]}")
        lines += [" " * (width + 25) + line for line in does[1:]]
    return "\n".join(lines)
