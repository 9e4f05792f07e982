"""`purine predict`: how fast a job will run, and what limits it."""

from __future__ import annotations

from dataclasses import replace
from inspect import Signature
from pathlib import Path

import typer

from purine.cli.parameters import option
from purine.cli.train import given_options, job_parameters

__all__ = ["predict"]


def predict(
    job: Path | None,
    *,
    from_trace: Path | None = None,
    what_if: list[str] | None = None,
    profile: Path | None = None,
    trace_out: Path | None = None,
    json: bool = False,
    **options: object,
) -> None:
    """Predict how fast a job will run, what it needs, and what limits it. Nothing runs.

    The options are those of `purine train`. The dispatcher of a run is driven by a virtual clock.
    Times of ops come from a trace (of this job, or of the same net on other devices), or from the
    profile that `purine calibrate` measured. The devices need not exist on this machine.

    \b
    purine predict --net googlenet --devices cpu:0-3
    purine predict --net lenet --devices host0-3:cpu:0 --what-if link=1gbit
    purine predict runs/a/config.yaml --from-trace runs/a
    purine predict --net lenet --from-trace runs/a --what-if devices=cpu:0-7
    purine predict --net lenet --devices cpu:0-3 --what-if slow=cpu:2@0.5 --trace-out t.json
    """
    from purine.analysis.cost import load_profile
    from purine.cli.figures import as_json, figures, headline
    from purine.job.automatic import with_devices
    from purine.job.config import merge
    from purine.job.foresee import foresight, read_source, refuse_workers
    from purine.job.launch import job_layers
    from purine.job.many import MANY, foresight_of_many
    from purine.job.plan import make_plan
    from purine.job.what_if import parse_what_if
    from purine.placement.devices import parse_devices

    assumed, devices = parse_what_if(what_if or [])
    layers = with_devices(job_layers(job, given_options(options)))
    if devices is not None:
        layers.append({"devices": devices})
    job_now = replace(merge(*layers), out=None)
    measured = None if profile is None else load_profile(profile)
    if len(parse_devices(job_now.devices)) > MANY and from_trace is None:
        plan, foretold = foresight_of_many(job_now, what_if=assumed, profile=measured)
    else:
        plan = make_plan(job_now, elsewhere=True)
        refuse_workers(plan)
        source = None if from_trace is None else read_source(from_trace)
        foretold = foresight(plan, source=source, what_if=assumed, profile=measured)
        if trace_out is not None:
            foretold.prediction.trace.save(trace_out)
    typer.echo(as_json(foretold) if json else f"{headline(plan)}\n{figures(plan, foretold)}")


_WHAT_IF = (
    "link=10gbit, latency=50us, transport=tcp, devices=cpu:0-7, slow=cpu:2@0.5; "
    "may be given several times."
)
_PARAMETERS = [
    *job_parameters(),
    option("from_trace", Path, "Times of ops, from a run or a trace.json.", metavar="RUN|FILE"),
    option("what_if", list[str], _WHAT_IF, metavar="KEY=VALUE"),
    option("profile", Path, "The machine's profile, from purine calibrate.", metavar="FILE"),
    option("trace_out", Path, "Write the predicted trace, for purine trace.", metavar="FILE"),
    option("json", bool, "Print one JSON object."),
]
predict.__dict__["__signature__"] = Signature(_PARAMETERS)  # what typer reads
