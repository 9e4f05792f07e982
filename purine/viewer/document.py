"""The documents that the page shows: the data of a run, a net, a trace or a prediction.

A document has the parts that are available: a trace alone has no curves, a net alone no timeline.
If a part cannot be computed, such as the step of a run whose data is gone, the page has a note
about it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from purine.errors import ConfigError, PurineError
from purine.files import read_bounded
from purine.graph import Graph
from purine.job.config import Job
from purine.job.folder import RunFolder
from purine.job.foresee import foresee
from purine.job.placing import compiles, scheme_of
from purine.job.plan import JobPlan, make_plan
from purine.lowering import Options, lower
from purine.lowering.hosts import hosts_of
from purine.recipe import fused
from purine.trace.summary import summary
from purine.trace.trace import Trace
from purine.viewer.columns import Json
from purine.viewer.graph_document import graph_document
from purine.viewer.held import memory_of
from purine.viewer.overview import (
    curves_of,
    facts_of_job,
    facts_of_trace,
    results_of,
    settings_of,
    shares_of,
    time_text,
)
from purine.viewer.sources import source_lines
from purine.viewer.timeline import timeline_of
from purine.viewer.traffic import traffic_of

__all__ = ["Part", "document", "of_net", "of_prediction", "of_run", "of_trace"]

Part = dict[str, Json]
"""One run, net, trace or prediction; a document has one, or two that are compared."""

_SUMMARY_BYTES = 1 << 24


def document(parts: Sequence[Part], *, live: Json = None) -> dict[str, Json]:
    """The document of a page; with `live` it has the address to poll."""
    title = " and ".join(str(part["name"]) for part in parts)
    return {"version": 1, "title": title, "parts": list(parts), "live": live}


def of_run(path: Path, *, live: bool = False) -> Part:
    """A run's folder: its job, curves and graph, and its trace if it recorded one."""
    folder = RunFolder.existing(path)
    job = folder.read_config()
    notes: list[str] = []
    plan = _plan(folder, job, notes)
    step, graphs = _graphs(plan, folder, notes)
    trace = Trace.load(folder.trace_file) if folder.trace_file.is_file() else None
    if trace is not None and not trace.events:
        trace = None
    if trace is None and not live:
        notes.append("This run recorded no trace: train with --trace to see the timeline.")
    part: Part = {"name": str(path), "sort": "run", "notes": list(notes)}
    part["facts"] = facts_of_job(job)
    part["results"] = results_of(_summary(folder))
    part["settings"] = settings_of(job)
    if plan is not None:
        part["iterations"] = plan.iterations
    part["curves"] = curves_of(folder.read_metrics())
    part["graph"] = _graph(step, plan.net if plan else step)
    if trace is not None:
        part |= _of_events(trace, step, graphs)
        part["predicted"] = _predicted(plan, graphs, part)
    return part


def of_trace(path: Path) -> Part:
    """A trace on its own."""
    trace = Trace.load(path)
    if not trace.events:
        what, remedy = "the trace has no events", "record some iterations with --trace"
        raise ConfigError(what, "a trace with events", "none", remedy, where=path)
    note = "A trace on its own has no sizes of blobs: open the folder of its run to see memory."
    return {"name": str(path), "sort": "trace", "notes": [note]} | _of_events(trace, None, ())


def of_net(graph: Graph, name: str) -> Part:
    """A graph that has not run."""
    counts = f"{len(graph.ops):,} ops, {len(graph.blobs):,} blobs"
    facts: list[Json] = [["graph", counts]]
    notes: list[Json] = []
    picture = _graph(graph, graph)
    return {"name": name, "sort": "net", "notes": notes, "facts": facts, "graph": picture}


def of_prediction(plan: JobPlan, name: str, trace: Trace) -> Part:
    """A job that has not run: its predicted trace."""
    graphs = _lowered(plan.step)
    note = "Predicted by the simulator: nothing of this has run."
    part: Part = {"name": name, "sort": "prediction", "notes": [note]}
    part["facts"] = facts_of_job(plan.job)
    part["settings"] = settings_of(plan.job)
    rate = plan.samples_per_iteration / (summary(trace).iteration_time / 1e9)
    part["results"] = results_of({"images_per_second": rate})
    part["graph"] = _graph(plan.step, plan.net)
    return part | _of_events(trace, plan.step, graphs)


def _of_events(trace: Trace, step: Graph | None, graphs: Sequence[Graph]) -> Part:
    origin = min(event.start for event in trace.events)
    return {
        "trace_facts": facts_of_trace(trace),
        "shares": shares_of(trace),
        "timeline": timeline_of(trace, step),
        "memory": memory_of(trace, graphs, origin),
        "traffic": traffic_of(trace, step, graphs),
    }


def _predicted(plan: JobPlan | None, graphs: Sequence[Graph], part: Part) -> Json:
    """The memory in the simulation, if the simulator supports the scheme; the time is added to the
    facts."""
    if plan is None or _has_workers(plan):
        return None
    found = foresee(plan, memory=False, single=True)
    origin = min(event.start for event in found.trace.events)
    facts = cast(list[Json], part["trace_facts"])
    facts.append(["predicted time of an iteration", time_text(found.seconds * 1e9)])
    return {"memory": memory_of(found.trace, graphs, origin)}


def _has_workers(plan: JobPlan) -> bool:
    scheme = scheme_of(plan.job)
    return scheme is not None and scheme.asynchronous is not None


def _plan(folder: RunFolder, job: Job, notes: list[str]) -> JobPlan | None:
    """The plan of a run; None, with a note, if its data or its devices are gone."""
    try:
        return make_plan(
            replace(job, out=None),
            net=folder.read_net(),
            test_net=folder.read_test_net(),
            elsewhere=True,
        )
    except PurineError as error:
        notes.append(f"The step of the run is not shown, only its net: {error.what}.")
        return None


def _graphs(
    plan: JobPlan | None, folder: RunFolder, notes: list[str]
) -> tuple[Graph, tuple[Graph, ...]]:
    """The graph to show, and its lowered forms, one for each host."""
    if plan is None:
        return folder.read_net(), ()
    step = fused(plan.step) if compiles(plan.job, plan.step) else plan.step
    return step, _lowered(step)


def _lowered(step: Graph) -> tuple[Graph, ...]:
    hosts = hosts_of(step)
    names = hosts if len(hosts) > 1 else (None,)
    return tuple(lower(step, Options(host=host)).graph for host in names)


def _graph(graph: Graph, net: Graph) -> Json:
    return cast(Json, graph_document(graph, lines=source_lines(graph, net)))


def _summary(folder: RunFolder) -> dict[str, object]:
    try:
        found = json.loads(read_bounded(folder.summary_file, _SUMMARY_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
