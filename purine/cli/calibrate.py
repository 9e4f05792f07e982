"""`purine calibrate`: the profile of this machine, from which predictions take their times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["calibrate"]


def calibrate(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it.  [default: a cache of the user]"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=5, help="How long to measure, about.")] = 100.0,
) -> None:
    """Measure how long kernels, dispatch and waking a thread take here, and keep the profile.

    `purine predict` and `--dry-run` read it. Decisions that make a graph, such as where a pipeline
    is cut, read it only where PURINE_PROFILE names the file. Nothing else should run meanwhile.

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
