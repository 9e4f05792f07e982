"""`purine show`: a graph, a training step or its lowered form as a table, text, dot or YAML."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purine.cli.completion import complete
from purine.errors import ConfigError
from purine.files import refuse_own_input, write_whole
from purine.job.names import NETS, PASSES
from purine.nearest import nearest_name

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


def show(
    file: Annotated[
        Path | None,
        typer.Argument(help="A graph in YAML, or a Caffe net (.prototxt).", show_default=False),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(
            help=f"A net by name ({', '.join(NETS)}), instead of a file.",
            show_default=False,
            autocompletion=complete(NETS),
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples in a batch.", show_default="the net's own")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="C,H,W",
            help="The size of an image, for a Caffe net or with --net.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to show it.")] = Format.table,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Fold ops whose names share this many parts, as in a/b/c, into a block.",
            show_default="every op by itself",
        ),
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Show the training step (with sgd) of the net.")
    ] = False,
    devices: Annotated[
        str | None,
        typer.Option(help="Devices of the step, such as cpu:0-1.", show_default="cpu:0"),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="The scheme of the step on several devices, as for purine train.",
            show_default="a replica on each device",
        ),
    ] = None,
    lowered: Annotated[
        bool, typer.Option("--lowered", help="Show the graph as this machine would run it.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="PASS",
            help="Show the graph after a pass of lowering: " + ", ".join(PASSES) + ".",
            show_default=False,
            autocompletion=complete(PASSES),
        ),
    ] = None,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="List all kinds with their inputs and attributes.")
    ] = False,
    stages: Annotated[
        bool, typer.Option("--stages", help="List the stages from a net to its training step.")
    ] = False,
    passes: Annotated[bool, typer.Option("--passes", help="List the passes of lowering.")] = False,
    rewrites: Annotated[
        bool, typer.Option("--rewrites", help="List the rewrites before a step is compiled.")
    ] = False,
    effects: Annotated[
        bool, typer.Option("--effects", help="List what changes the whole process.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to a file.", show_default="the terminal"),
    ] = None,
) -> None:
    """Show a graph: its ops with shapes, parameters, work and memory.

    \b
    purine show --net lenet --batch 1
    purine show --net resnet50 --depth 2
    purine show net.yaml --step --format dot -o step.dot
    purine show --net lenet --step --devices cpu:0-1 --lowered --format text
    purine show --kinds
    purine show --rewrites
    """
    if depth is not None and format is Format.yaml:
        raise ConfigError(
            "blocks cannot be written as YAML",
            expected="--depth with --format table, text or dot",
            found="--format yaml",
            remedy="leave --depth out: a graph file holds every op",
        )
    if output is not None and file is not None:
        refuse_own_input(output, file)
    lists = {
        _kinds_text: kinds,
        _stages_text: stages,
        _passes_text: passes,
        _rewrites_text: rewrites,
        _effects_text: effects,
    }
    if any(lists.values()):
        text = "\n".join(list_text() for list_text, asked in lists.items() if asked)
    else:
        graph = _graph(file, net, batch, image)
        if step:
            graph = _step(graph, devices, parallel)
        else:
            _refuse_without_step({"--devices": devices, "--parallel": parallel})
        text = _graph_text(_lowered(graph, after, lower=lowered), format, depth)
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
        raise ConfigError(
            f"the output has no code for {error.object[error.start]!a}, which is in a name",
            expected="an output in UTF-8",
            found=encoding,
            remedy="write to a file with -o, or set PYTHONIOENCODING=utf-8",
        ) from None


def _graph(file: Path | None, net: str | None, batch: int | None, image: str | None) -> Graph:
    from purine import zoo
    from purine.analysis.infer import check, with_batch
    from purine.cli.check import refuse_folder
    from purine.cli.imports import no_image, parse_image
    from purine.graph import load_yaml

    if (file is None) == (net is None):
        raise ConfigError(
            "there is nothing to show" if file is None else "both a file and --net are given",
            expected="a graph in a YAML file, or --net with one of " + ", ".join(NETS),
            found="neither" if file is None else f"{file} and --net {net}",
            remedy="write for example purine show --net lenet",
        )
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
    raise ConfigError(
        f"there is no net {net!r}",
        expected="one of " + ", ".join(NETS),
        found=repr(net),
        remedy=nearest_name(str(net), NETS, own),
    )


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


def _refuse_without_step(options: Mapping[str, str | None]) -> None:
    for option, value in options.items():
        if value is not None:
            raise ConfigError(
                f"{option} is given without --step",
                expected="--step, since a net has no devices",
                found=f"{option} {value}",
                remedy="add --step to show the training step on these devices",
            )


def _lowered(graph: Graph, after: str | None, *, lower: bool) -> Lowered:
    """The graph, lowered as far as it is asked for."""
    from purine import lowering

    if not lower and after is None:
        return lowering.Lowered(graph)
    return lowering.lower(graph, lowering.options_for(graph), after=after)


def _net_arguments(net: str, batch: int | None, image: str | None) -> dict[str, object]:
    """The arguments of a net of the zoo, of those that are given."""
    from inspect import signature

    from purine import zoo
    from purine.cli.imports import no_image, parse_image

    if image is not None and "image" not in signature(zoo.NETS[net]).parameters:
        raise no_image(f"--net {net}", "it takes no images")
    given = {"batch": batch, "image": parse_image(image)}
    return {key: value for key, value in given.items() if value is not None}


def _graph_text(lowered: Lowered, format: Format, depth: int | None) -> str:
    from purine.graph import to_dot, to_yaml
    from purine.graph.fold import fold

    if format is Format.table:
        return _table_text(lowered, depth)
    graph = lowered.graph if depth is None else fold(lowered.graph, depth)
    if format is Format.text:
        return f"{replace(lowered, graph=graph)}\n"
    text = to_dot(graph) if format is Format.dot else to_yaml(graph)
    return text if text.endswith("\n") else text + "\n"


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

    return _columns([(stage.name, stage.why) for stage in RECIPE], left=2)


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
    """Columns two spaces apart; the first `left` hold text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines) + "\n"
