"""`purine show`: a graph, a training step or its lowered form as a table, text, picture or YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from inspect import Signature
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from purine.cli.parameters import argument, complete, option, parameter
from purine.errors import ConfigError
from purine.files import refuse_own_input, write_whole
from purine.job.names import NETS, PASSES
from purine.nearest import unknown_name
from purine.trace.tables import as_table

if TYPE_CHECKING:
    from purine.graph import Graph
    from purine.lowering import Lowered

__all__ = ["show"]


class Format(StrEnum):
    """The forms in which a graph can be shown."""

    table = "table"
    text = "text"
    dot = "dot"
    yaml = "yaml"
    svg = "svg"
    html = "html"
    model_explorer = "model-explorer"


_PICTURES = (Format.svg, Format.html)


def show(
    file: Path | None,
    *,
    format: Format,
    depth: int | None,
    clock: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Show a graph: its ops with shapes, parameters, work and memory.

    \b
    purine show --net lenet --batch 1
    purine show --net resnet50 --depth 2
    purine show --net googlenet --step --devices cpu:0-7 --format svg -o step.svg
    purine show net.yaml --step --format html -o step.html
    purine show --net lenet --step --devices cpu:0-1 --lowered --format text
    purine show --kinds
    purine show --rewrites
    """
    if depth is not None and format is Format.yaml:
        what = "blocks cannot be written as YAML"
        expected, found = "--depth with --format table, text or dot", "--format yaml"
        raise ConfigError(what, expected, found, "leave --depth out: a graph file holds every op")
    if clock and format not in _PICTURES:
        what, expected = f"--clock is given with --format {format}", "--format svg or html"
        remedy = "leave --clock out: other forms show the clock always"
        raise ConfigError(what, expected, f"--format {format}", remedy)
    if output is not None and file is not None:
        refuse_own_input(output, file)
    lists = [list_text for name, (_, list_text) in _LISTS.items() if options.pop(name)]
    if lists:
        text = "\n".join(list_text() for list_text in lists)
    elif format in _PICTURES:
        lowered = _asked_graph(file, **options)
        text = _picture(lowered, format, depth, title=_title(file, **options), clock=clock)
    else:
        text = _graph_text(_asked_graph(file, **options), format, depth)
    if output is None:
        _refuse_other_names(text, format)
        typer.echo(text, nl=False)
    else:
        write_whole(output, text)


def _refuse_other_names(text: str, format: Format) -> None:
    """Refuse YAML on an output that has no codes for its names: escaped, they are other names."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding if format is Format.yaml else "utf-8", "strict")
    except UnicodeEncodeError as error:
        what = f"the output cannot encode {error.object[error.start]!a}, which is in a name"
        found, remedy = encoding, "write to a file with -o, or set PYTHONIOENCODING=utf-8"
        raise ConfigError(what, "an output in UTF-8", found, remedy) from None


def _graph(file: Path | None, net: str | None, batch: int | None, image: str | None) -> Graph:
    from purine import zoo
    from purine.analysis.infer import check, with_batch
    from purine.cli.imports import no_image, parse_image
    from purine.cli.reports import refuse_folder
    from purine.graph import load_yaml

    if (file is None) == (net is None):
        what = "there is nothing to show" if file is None else "both a file and --net are given"
        expected = "a graph in a YAML file, or --net with one of " + ", ".join(NETS)
        found = "neither" if file is None else f"{file} and --net {net}"
        raise ConfigError(what, expected, found, "write for example purine show --net lenet")
    if file is not None and file.suffix == ".prototxt":
        from purine.importers.caffe import from_caffe

        return from_caffe(file, batch=batch, image=parse_image(image)).net
    if file is not None:
        if image is not None:
            raise no_image(str(file), "a graph in YAML says the sizes of its blobs itself")
        refuse_folder(file, "show")
        graph = check(load_yaml(file))
        return graph if batch is None else with_batch(graph, batch)
    if net is not None and net in NETS:
        return check(zoo.NETS[net](**_net_arguments(net, batch, image)))
    own = "name a file without --net to show a graph of your own"
    raise unknown_name(ConfigError, "net", str(net), NETS, remedy=own, cutoff=0.6)


def _step(net: Graph, devices: str | None, parallel: str | None) -> Graph:
    """The training step of a net with SGD, on one device or by a scheme on several."""
    from functools import partial

    from purine.analysis.infer import check
    from purine.autodiff import backward
    from purine.job.config import Job
    from purine.job.placing import scheme_of
    from purine.placement.place import to_device
    from purine.recipe import compose
    from purine.solvers import sgd

    solver = partial(sgd, momentum=0.9)
    where = devices or Job.devices
    scheme = scheme_of(Job(devices=where, parallel=parallel))
    if scheme is not None:
        return check(compose(net, solver=solver, devices=where, scheme=scheme))
    step = check(solver(backward(net)))
    return step if devices is None else to_device(step, devices)


def _asked_graph(
    file: Path | None,
    *,
    step: bool,
    devices: str | None,
    parallel: str | None,
    lowered: bool,
    after: str | None,
    **net: Any,
) -> Lowered:
    """The net or its training step, lowered as far as the options ask."""
    from purine import lowering
    from purine.lowering.hosts import hosts_of
    from purine.lowering.workers import has_workers

    graph = _graph(file, **net)
    if step:
        graph = _step(graph, devices, parallel)
    for flag, value in (("--devices", devices), ("--parallel", parallel)):
        if value is not None and not step:
            what, expected = f"{flag} is given without --step", "--step, since a net has no devices"
            remedy = "add --step to show the training step on these devices"
            raise ConfigError(what, expected, f"{flag} {value}", remedy)
    if not lowered and after is None:
        return lowering.Lowered(graph)
    if has_workers(graph) and len(hosts_of(graph)) > 1:
        what, expected = "workers on several hosts are lowered one by one", "a step on one host"
        raise ConfigError(what, expected, ", ".join(hosts_of(graph)), "leave --lowered out")
    return lowering.lower(graph, lowering.options_for(graph), after=after)


def _net_arguments(net: str, batch: int | None, image: str | None) -> dict[str, object]:
    """The given options that are arguments of this net of the zoo."""
    from inspect import signature

    from purine import zoo
    from purine.cli.imports import no_image, parse_image

    if image is not None and "image" not in signature(zoo.NETS[net]).parameters:
        raise no_image(f"--net {net}", "it takes no images")
    given = {"batch": batch, "image": parse_image(image)}
    return {key: value for key, value in given.items() if value is not None}


def _graph_text(lowered: Lowered, format: Format, depth: int | None) -> str:
    from purine.graph import to_dot, to_model_explorer, to_yaml
    from purine.graph.fold import fold

    if format is Format.table:
        return _table_text(lowered, depth)
    graph = lowered.graph if depth is None else fold(lowered.graph, depth)
    if format is Format.text:
        return f"{replace(lowered, graph=graph)}\n"
    write = {Format.dot: to_dot, Format.model_explorer: to_model_explorer}.get(format, to_yaml)
    return write(graph)


def _picture(
    lowered: Lowered, format: Format, depth: int | None, *, title: str, clock: bool
) -> str:
    from purine.viewer.arrange import opened
    from purine.viewer.graph_document import graph_document
    from purine.viewer.graph_html import to_html
    from purine.viewer.graph_svg import to_svg

    document = graph_document(lowered, title=title, clock=clock)
    if format is Format.svg:
        return to_svg(document, depth=depth)
    if depth is not None:
        document |= {"open": sorted(opened(document, depth))}
    return to_html(document)


def _title(file: Path | None, **options: Any) -> str:
    name = file.name if file is not None else str(options["net"])
    what = ", a training step" if options["step"] else ""
    return f"{name}{what}{' on ' + options['devices'] if options['devices'] else ''}"


def _table_text(lowered: Lowered, depth: int | None) -> str:
    """A row for each op, or for each block of ops whose names share `depth` parts."""
    from purine.analysis.cost import cost
    from purine.analysis.infer import size_in_bytes
    from purine.graph.fold import blocks, fold

    graph = lowered.graph
    blobs = (lowered.unsegmented or graph).blobs
    members = {name: (name,) for name in graph.order} if depth is None else blocks(graph, depth)
    shown = graph if depth is None else fold(graph, depth)
    rows = [("op" if depth is None else "block", "kind", "output", "parameters", "MFLOP", "kB")]
    counted: set[str] = set()
    totals = [0, 0.0, 0.0]
    for block, names in members.items():
        parameters, mflop, size = 0, 0.0, 0.0
        for op in (graph.ops[name] for name in names):
            own = [n for n in op.inputs if n in graph.states and graph.states[n].trainable]
            parameters += sum(prod(graph.blobs[n].shape or ()) for n in own if n not in counted)
            counted.update(own)
            parts = lowered.members.get(op.name, (op,))
            mflop += sum(cost(part, blobs).flops for part in parts) / 1e6
            size += sum(size_in_bytes(graph.blobs[item]) for item in op.outputs if item) / 1e3
        number = f"{parameters:,}" if parameters else ""
        kind, shapes = shown.ops[block].kind, _shapes(shown, block)
        rows.append((block, kind, shapes, number, f"{mflop:,.2f}", f"{size:,.1f}"))
        totals = [totals[0] + parameters, totals[1] + mflop, totals[2] + size]
    count = f"{len(graph.ops)} ops, {len(graph.blobs)} blobs"
    rows.append((count, "", "", f"{totals[0]:,}", f"{totals[1]:,.2f}", f"{totals[2]:,.1f}"))
    return _columns(rows, left=3)


def _shapes(graph: Graph, op: str) -> str:
    blobs = [graph.blobs[name] for name in graph.ops[op].outputs if name]
    texts = ["x".join(map(str, blob.shape or ())) or "scalar" for blob in blobs]
    return ", ".join(texts if len(texts) <= 3 else [*texts[:2], f"and {len(texts) - 2} more"])


def _kinds_text() -> str:
    import purine.kinds  # noqa: F401  (registers all kinds)
    from purine.arguments import describe
    from purine.registry.lookup import kinds

    lines = []
    for name, kind in sorted(kinds().items()):
        required = len(kind.inputs) - kind.optional
        inputs = [f"{item}{'' if at < required else '?'}" for at, item in enumerate(kind.inputs)]
        lines.append(f"{name}({', '.join([*inputs, *(['...'] if kind.variadic else [])])})")
        doc = (kind.function.__doc__ or "").strip() if kind.function is not None else ""
        if doc:
            lines.append(f"    {doc.splitlines()[0]}")
        for key, attr in kind.attributes.items():
            default = "required" if attr.required else f"default {attr.default!r}"
            lines.append(f"    {key}: {describe(attr.annotation)} ({default})")
    return "\n".join(lines) + "\n"


def _stages_text() -> str:
    from purine.recipe import RECIPE

    return _columns([(item.name, item.why) for item in RECIPE], left=2)


def _passes_text() -> str:
    from purine.lowering import LOWERING

    return _columns([(item.name, item.why) for item in LOWERING], left=2)


def _rewrites_text() -> str:
    from purine.compile.rewrites import rewrites_table

    return _columns(rewrites_table(), left=3)


def _effects_text() -> str:
    from purine.machine.effects import EFFECTS

    return _columns([(e.name, e.when, e.changes.replace("`", "")) for e in EFFECTS], left=3)


def _columns(rows: Sequence[tuple[str, ...]], *, left: int) -> str:
    return as_table(rows, left=left, indent="") + "\n"


_LISTS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "kinds": ("List all kinds with their inputs and attributes.", _kinds_text),
    "stages": ("List the stages from a net to its training step.", _stages_text),
    "passes": ("List the passes of lowering.", _passes_text),
    "rewrites": ("List the rewrites before a step is compiled.", _rewrites_text),
    "effects": ("List the effects on the whole process.", _effects_text),
}
"""Flags that list something instead of showing a graph: the help, and the text of the list."""

_NETS = ", ".join(NETS)
_PARAMETERS = (
    parameter("file", Path | None, argument("A graph in YAML, or a Caffe net (.prototxt).")),
    option(
        "net", str, f"A net by name ({_NETS}), instead of a file.", autocompletion=complete(NETS)
    ),
    option("batch", int, "Samples in a batch.", shown="the net's own", min=1),
    option("image", str, "The size of an image, for a Caffe net or with --net.", metavar="C,H,W"),
    parameter("format", Format, typer.Option(help="How to show it."), Format.table),
    option(
        "depth",
        int,
        "Fold ops whose names share this many parts, as in a/b/c, into a block.",
        shown="every op by itself",
        min=1,
    ),
    option(
        "clock",
        bool,
        "In a picture, also the seed, the iteration and ops that depend only on them.",
    ),
    option("step", bool, "Show the training step (with sgd) of the net."),
    option("devices", str, "Devices of the step, such as cpu:0-1.", shown="cpu:0"),
    option(
        "parallel",
        str,
        "The scheme of the step on several devices, as for purine train.",
        shown="a replica on each device",
        metavar="KEY=VALUE,...",
    ),
    option("lowered", bool, "Show the graph as this machine would run it."),
    option(
        "after",
        str,
        f"Show the graph after a pass of lowering: {', '.join(PASSES)}.",
        metavar="PASS",
        autocompletion=complete(PASSES),
    ),
    *(option(name, bool, help) for name, (help, _) in _LISTS.items()),
    option("output", Path, "Write to a file.", "--output", "--out", "-o", shown="the terminal"),
)
show.__dict__["__signature__"] = Signature(_PARAMETERS)  # what typer reads
