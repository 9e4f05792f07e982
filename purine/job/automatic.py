"""`--devices all` and `--parallel auto`: the devices of the machine, and the scheme of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from purine.analysis.cost import PROFILE
from purine.job.config import Given, Job, merge
from purine.job.options import ALL, AUTO
from purine.job.placing import refuse_unfit, threads_for
from purine.job.plan import JobPlan, make_plan
from purine.job.search import Search, search
from purine.machine.cores import available
from purine.placement.devices import parse_devices
from purine.transports.processes import rank_and_size

__all__ = ["base_plan", "settled_layers", "with_devices", "without_auto"]


def with_devices(layers: Sequence[Given]) -> list[Given]:
    """The layers with `all` replaced by the devices of this machine: its GPUs, else its cores."""
    return [
        {**layer, "devices": _all_devices()} if layer.get("devices") == ALL else dict(layer)
        for layer in layers
    ]


def without_auto(layers: Sequence[Given]) -> list[Given]:
    """The layers for a resumed run: it keeps its own scheme if they leave that open."""
    return [
        {name: value for name, value in layer.items() if (name, value) != ("parallel", AUTO)}
        for layer in with_devices(layers)
    ]


def _all_devices() -> str:
    gpus = torch.cuda.device_count()
    kind, count = ("cuda", gpus) if gpus else ("cpu", len(available()))
    return f"{kind}:0-{count - 1}" if count > 1 else f"{kind}:0"


def settled_layers(
    layers: Sequence[Given], *, progress: Callable[[str], None] = lambda text: None
) -> list[Given]:
    """The layers with devices and a scheme if they leave these open.

    If several hosts train, each plans for itself. They agree, since nothing is measured and no host
    uses a profile of its own.
    """
    layers = with_devices(layers)
    named = [layer["parallel"] for layer in layers if layer.get("parallel") is not None]
    if not named or named[-1] != AUTO:
        return layers
    plan = base_plan(merge(*({**layer, "parallel": None} for layer in layers)))
    alone = rank_and_size()[1] < 2
    told = Search(most=12, seconds=90.0, measuring=20.0 * alone, trial=5.0 * alone)
    if not alone:
        told = replace(told, profile=PROFILE)
    searched = search(plan, replace(told, progress=progress))
    job = searched.job
    refuse_unfit(make_plan(job, net=plan.net, elsewhere=True).step, job)
    chosen = {"devices": job.devices, "parallel": job.parallel, "threads": job.threads}
    progress(f"plan: {searched.best.candidate}, {searched.best.seconds * 1e3:,.1f} ms a step")
    return [*layers, chosen]


def base_plan(job: Job) -> JobPlan:
    """The plan of a job on the first of its devices, before its scheme is chosen."""
    devices = parse_devices(job.devices)
    threads = job.threads or threads_for(replace(job, parallel=None))
    first = "cpu:0" if devices[0].rpartition(":")[0].endswith("cpu") else devices[0]
    plan = make_plan(replace(job, devices=first, parallel=None, threads=threads), elsewhere=True)
    return replace(plan, job=replace(plan.job, devices=job.devices))
