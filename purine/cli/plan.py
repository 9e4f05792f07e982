"""`purine plan`: the scheme that is predicted to train a net fastest on some devices."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from purine.cli.parameters import given, option, parameter
from purine.cli.train import given_options, job_parameters

if TYPE_CHECKING:
    from purine.job.search import Search, Searched

__all__ = ["plan"]


def plan(job: Path | None, *, out: Path | None = None, json: bool = False, **options: Any) -> None:
    """Search the schemes for a job's devices, and write the best one as a job file.

    The search covers replicas, pipelines, sharded layers and combinations of them, with
    micro-batches, schedules, topologies and recomputation. The cost model ranks them, and the most
    promising ones are simulated. Times of ops come from a trace, from a measurement in this process
    if the devices are cores of this machine, or from the profile. Other devices need not exist.

    \b
    purine plan --net googlenet --devices all --out job.yaml && purine train job.yaml
    purine plan --net gpt2 --devices host0-7:cuda:0-7 --link 10gbit --memory 80gb
    purine plan --net lenet --devices host0-1:cpu:0-1 --link 1gbit --allow compression
    """
    from purine.job.automatic import base_plan, with_devices
    from purine.job.config import merge
    from purine.job.file import job_text
    from purine.job.foresee import refuse_workers
    from purine.job.launch import job_layers
    from purine.job.search import search

    told = _told(quiet=json, **{name: options.pop(name) for name in _SEARCH})
    layers = with_devices(job_layers(job, given_options(options)))
    base = base_plan(merge(*({**layer, "parallel": None} for layer in layers), {"out": None}))
    refuse_workers(base)
    best = search(base, told)
    if out is not None:
        _write(out, job_text(replace(best.job, out=None)))
    typer.echo(_as_json(best) if json else _text(best, out))


def _told(
    *,
    memory: str | None,
    allow: str | None,
    from_trace: Path | None,
    profile: Path | None,
    simulate: int,
    seconds: float,
    measure: float,
    trial: float,
    quiet: bool,
    **what_if: str | None,
) -> Search:
    """What a search is told by the options that are its own."""
    from purine.analysis.cost import load_profile
    from purine.job.candidates import check_allowed
    from purine.job.foresee import read_source
    from purine.job.profiles import own_profile
    from purine.job.search import Search
    from purine.job.what_if import parse_size, parse_what_if

    return Search(
        allow=check_allowed(allow.split(",") if allow else ()),
        what_if=parse_what_if([f"{key}={value}" for key, value in what_if.items() if value])[0],
        profile=own_profile() if profile is None else load_profile(profile),
        source=None if from_trace is None else read_source(from_trace),
        memory=None if memory is None else parse_size(memory),
        most=simulate,
        seconds=seconds,
        measuring=measure,
        trial=trial,
        progress=(lambda text: None) if quiet else lambda text: typer.echo(text, err=True),
    )


def _write(path: Path, text: str) -> None:
    from purine.errors import ConfigError
    from purine.files import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        what = f"the job cannot be written to {str(path)!r}"
        expected, remedy = "a file in a folder that is there", "name another with --out"
        raise ConfigError(what, expected, str(error), remedy) from error


def _text(searched: Searched, out: Path | None) -> str:
    """The ten best plans, those that were dropped and why, and the recommendation."""
    from purine.job.placing import megabytes
    from purine.job.search import ERROR, seconds_text

    lines = ["     a step     at the peak  scheme"]
    lines += [
        f"{number:>2}  {seconds_text(one.seconds):>9}  {megabytes(one.peak):>12}  {one.candidate}"
        + ("" if one.tried is None else f" ({seconds_text(one.tried)} when it ran)")
        for number, one in enumerate(searched.plans[:10], 1)
    ]
    if len(searched.plans) > 10:
        lines.append(f"    and {len(searched.plans) - 10} that are slower")
    reasons: dict[str, list[str]] = {}
    for candidate, why in searched.out:
        reasons.setdefault(why, []).append(str(candidate))
    for why, which in list(reasons.items())[:20]:
        more = f" and {len(which) - 3} others" if len(which) > 3 else ""
        lines.append(f"out: {'; '.join(which[:3])}{more}: {why}")
    if len(reasons) > 20:
        lines.append(f"dropped for other reasons: {sum(map(len, list(reasons.values())[20:]))}")
    if searched.ties:
        names = "; ".join(str(one.candidate) for one in searched.ties[:3])
        lines.append(
            f"note: {len(searched.ties)} differ from the best by less than the error of "
            f"predictions, {ERROR:.0%}: {names}"
        )
    lines.append(
        f"{searched.basis}; {len(searched.plans)} plans simulated in {searched.seconds:.1f} s, "
        f"{searched.measured:.1f} s of it to measure"
    )
    lines.append(f"recommended: {searched.best.candidate}")
    if out is not None:
        lines.append(f"written to {out}: purine train {out}")
    return "\n".join(lines)


def _as_json(searched: Searched) -> str:
    from json import dumps

    return dumps(
        {
            "plans": [
                {
                    "scheme": str(one.candidate.scheme),
                    "devices": list(one.candidate.devices[:16]),
                    "compress": one.candidate.compress,
                    "seconds": one.seconds,
                    "peak": one.peak,
                }
                for one in searched.plans
            ],
            "out": [{"candidate": str(one), "why": why} for one, why in searched.out],
            "ties": len(searched.ties),
            "basis": searched.basis,
            "seconds": searched.seconds,
            "measured": searched.measured,
        }
    )


def _option(name: str, annotation: object, text: str, metavar: str, default: object) -> Parameter:
    return parameter(name, annotation, given(text, metavar=metavar), default)


_OWN = [
    _option("out", Path | None, "Write the best plan as a job file.", "FILE", None),
    _option("memory", str | None, "Memory of each device: 16gb.", "SIZE", None),
    _option("link", str | None, "Bandwidth of each host: 10gbit.", "RATE", None),
    _option("latency", str | None, "Latency between hosts: 50us.", "TIME", None),
    _option("transport", str | None, "Transport between hosts: tcp, shm.", "NAME", None),
    _option(
        "allow", str | None, "Also what changes numbers: compression, staleness.", "NAME,...", None
    ),
    _option("from_trace", Path | None, "Times of ops, from a run or a trace.", "RUN|FILE", None),
    _option("profile", Path | None, "The machine's profile.", "FILE", None),
    _option("simulate", int, "Most candidates to simulate.", "N", 24),
    _option("seconds", float, "Most seconds for the search.", "S", 300.0),
    _option("measure", float, "Most seconds to measure the net on this machine.", "S", 30.0),
    _option("trial", float, "Seconds to run equally good plans on this machine.", "S", 5.0),
    option("json", bool, "Print one JSON object."),
]
_SEARCH = [one.name for one in _OWN if one.name not in ("out", "json")]
_TAKEN = {"parallel", *(one.name for one in _OWN)}
plan.__dict__["__signature__"] = Signature(  # what typer reads
    [*(one for one in job_parameters() if one.name not in _TAKEN), *_OWN]
)
