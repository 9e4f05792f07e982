"""`purine calibrate`: the profile of this machine, from which predictions take their times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["calibrate"]


def calibrate(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it.  [default: the user's cache]"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=5, help="Approximate seconds to measure.")] = 100.0,
) -> None:
    """Measure how long kernels, dispatch and waking a thread take here, and keep the profile.

    `purine predict` and `--dry-run` read it. Decisions that shape a graph, such as where a pipeline
    is cut, read it only if PURINE_PROFILE names the file. Keep the machine idle meanwhile.

    \b
    purine calibrate
    purine calibrate --out here.yaml && PURINE_PROFILE=here.yaml purine train ...
    """
    from purine.job.calibrate import calibrate as measure
    from purine.job.profiles import profile_path, save_profile

    path = out or profile_path()
    profile = measure(seconds=seconds, tell=lambda line: typer.echo(line, err=True))
    save_profile(profile, path)
    typer.echo(f"{profile.name}: {len(profile.kernels.points)} times of kernels")
    typer.echo(
        f"one core: {profile.core.flops / 1e9:.1f} GFLOP/s, {profile.core.bytes / 1e9:.1f} GB/s; "
        f"dispatch {profile.dispatch * 1e6:.1f} us, waking a thread {profile.hop * 1e6:.1f} us; "
        f"another busy core costs {profile.crowding:.1%}"
    )
    typer.echo(f"written to {path}")
