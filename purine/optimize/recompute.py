"""Activation checkpointing: the backward computes activations again instead of keeping them.

Of a block of forward ops, only the inputs and the results that other layers read are kept. When the
backward reaches the block, copies of its forward ops, under `again/`, compute the rest. They run
the same kernels on the same inputs (random numbers are functions of seed and iteration), so the
results have the same bits. Their running statistics are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product

from purine.analysis.cost import PROFILE, cost
from purine.analysis.infer import complete
from purine.arguments import checked, wrong_value
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Builder, Graph, Op
from purine.graph.names import GRADIENT, again_of, origin_of
from purine.kinds.fused import refuse_fused
from purine.nearest import nearest_names

__all__ = ["recompute"]


@checked
def recompute(step: Graph, blocks: int | str | Iterable[str]) -> Graph:
    """The step with values of some blocks computed again instead of kept for the backward.

    `blocks` are prefixes of op names, such as `stage2/block1`; with wildcards, as in
    `stage*/block*`, each matching prefix is a block. A number n stands for n contiguous blocks of
    about equal cost, of which the last is not computed again. Each micro-batch and replica has its
    own blocks.

    >>> import purine as pu
    >>> net = pu.zoo.resnet50(batch=2, image=(3, 32, 32), classes=10, width=4, layers=(1, 1))
    >>> step = recompute(pu.solvers.sgd(pu.backward(net), lr=0.1), "stage*")
    >>> sum(name.startswith("again/stage1/block1/conv1") for name in step.ops) > 0
    True
    """
    step = complete(step)
    forward = _forward(step)
    if isinstance(blocks, int):
        chosen = _equal_blocks(step, forward, blocks)
    else:
        chosen = _named_blocks(forward, [blocks] if isinstance(blocks, str) else list(blocks))
    for block in chosen:
        step = _repeated(step, block)
    return step


def _is_backward(step: Graph, op: Op) -> bool:
    """Whether an op is one of the backward, or copies what such an op makes."""
    maker: Op | None = op
    while maker is not None and maker.kind == "Copy":
        maker = step.producers.get(maker.inputs[0])
    return maker is not None and origin_of(maker).role == "backward"


def _name_in_net(op: Op) -> str:
    """The name of an op without that of its replica and micro-batch."""
    return op.name.removeprefix(origin_of(op).parts)


def _forward(step: Graph) -> list[Op]:
    """The ops that can be repeated, each shortly before the first that reads its results."""
    # Control edges do not count: in a pipeline, a forward may wait for the backward of another
    # micro-batch.
    if not any(_is_backward(step, op) for op in step.ops.values()):
        refuse_fused(step, "recompute")
        what, expected = "the graph has no gradients", "a training step, or a net with its backward"
        found = f"{len(step.ops)} ops, none of them under {GRADIENT}/"
        raise GraphError(what, expected, found, "run backward first: recompute(backward(net), ...)")
    readers = {
        op.name: [reader for blob in op.outputs for reader in step.consumers.get(blob, ())]
        for op in step.ops.values()
    }
    behind: set[str] = set()
    for name in step.order:
        if name in behind or _is_backward(step, step.ops[name]):
            behind.update((name, *(op.name for op in readers[name])))
    repeatable: dict[str, Op] = {}
    for name in reversed(step.order):
        op = step.ops[name]
        repeats = op.lane.startswith("compute") and origin_of(op).role != "recompute"
        needed = any(r.name in repeatable or _is_backward(step, r) for r in readers[name])
        if repeats and name not in behind and needed:
            repeatable[name] = op
    late: dict[str, Op] = {}
    ends = [n for n in repeatable if not any(r.name in repeatable for r in readers[n])]
    stack = [(name, False) for name in ends]
    while stack:
        name, ready = stack.pop()
        if ready:
            late[name] = repeatable[name]
        elif name not in late:
            makers = (step.producers.get(blob) for blob in reversed(step.ops[name].inputs))
            stack.append((name, True))
            stack += [(op.name, False) for op in makers if op is not None and op.name in repeatable]
    return list(late.values())


def _named_blocks(forward: Sequence[Op], names: Sequence[str]) -> list[list[str]]:
    blocks: dict[tuple[str, str], list[str]] = {}
    taken: dict[str, str] = {}
    for pattern in names:
        depth = pattern.count("/") + 1
        matched = False
        for op in forward:
            name, parts = op.name, _name_in_net(op).split("/")
            if len(parts) < depth or not all(map(fnmatchcase, parts, pattern.split("/"))):
                continue
            matched = True
            if taken.setdefault(name, pattern) != pattern:
                what, expected = f"op {name!r} is in two blocks", "blocks that have no op in common"
                found, remedy = f"{taken[name]!r} and {pattern!r}", "leave one of them out"
                raise ConfigError(what, expected, found, remedy, op=name)
            blocks.setdefault((origin_of(op).parts, "/".join(parts[:depth])), []).append(name)
        if not matched:
            raise _no_such_block(forward, pattern)
    return list(blocks.values())


def _no_such_block(forward: Sequence[Op], pattern: str) -> ConfigError:
    known: dict[str, None] = {}
    for op in forward:
        parts = _name_in_net(op).split("/")
        known |= dict.fromkeys("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    expected = "the first parts of names of forward ops, such as " + ", ".join([*known][:4])
    remedy = nearest_names(pattern, known, "see `purine show` for the names")
    return ConfigError(f"there is no block {pattern!r}", expected, repr(pattern), remedy)


def _equal_blocks(step: Graph, forward: Sequence[Op], count: int) -> list[list[str]]:
    """Contiguous blocks of about equal cost, but for the last."""
    if count < 2:
        expected = "2 or more: the last block is never computed again"
        remedy = "name the blocks, or ask for more"
        raise wrong_value(ConfigError, "blocks", count, expected, remedy=remedy)
    parts_of_batch: dict[str, list[Op]] = {}
    for op in forward:
        parts_of_batch.setdefault(origin_of(op).parts, []).append(op)
    blocks: dict[tuple[str, int], list[str]] = {}
    for part, ops in parts_of_batch.items():
        costs = [PROFILE.recomputed.seconds(cost(op, step.blobs)) for op in ops]
        whole, before = sum(costs) or 1.0, 0.0
        for op, own in zip(ops, costs, strict=True):
            number = min(int(count * (before + own / 2) / whole), count - 1)
            blocks.setdefault((part, number), []).append(op.name)
            before += own
    return [names for (_, number), names in blocks.items() if number < count - 1]


def _repeated(step: Graph, block: Sequence[str]) -> Graph:
    """The step with copies of the ops of one block that its backward needs."""
    # Blocks are repeated one by one, so that no two of them wait for each other.
    inside = set(block)
    kept = {*step.outputs, *step.states, *(state.next for state in step.states.values())}
    lost: list[str] = []
    readers: dict[str, Op] = {}
    for name in block:
        for blob in step.ops[name].outputs:
            others = [op for op in step.consumers.get(blob, ()) if op.name not in inside]
            if blob == NOTHING or blob in kept or not all(_is_backward(step, op) for op in others):
                kept.add(blob)
            elif others:
                lost.append(blob)
                readers |= {op.name: op for op in others}
    if not lost:
        return step
    repeated, wanted = _closure(step, lost, inside, kept)
    builder = Builder(step)
    names: dict[str, str] = {}
    for op in (step.ops[name] for name in block):
        parts = origin_of(op).parts
        names |= {blob: again_of(blob, parts) for blob in op.outputs if blob in wanted}
    for blob, name in names.items():
        builder.add(replace(step.blobs[blob], name=name))
    first = []
    for name in block:
        op = step.ops[name]
        if name not in repeated:
            continue
        origin = replace(origin_of(op), of=name, role="recompute")
        again = again_of(name, origin.parts)
        if wanted.isdisjoint(op.inputs):
            first.append(again)
        inputs = tuple(names.get(item, item) for item in op.inputs)
        outputs = tuple(names.get(item, NOTHING) for item in op.outputs)
        builder.add(replace(op, name=again, origin=origin, inputs=inputs, outputs=outputs))
    for name in readers:
        builder.ops[name] = builder.ops[name].renamed(names)
    builder.control |= set(product(_triggers(step, block, readers), first))
    return builder.graph()


def _closure(
    step: Graph, lost: Sequence[str], inside: set[str], kept: set[str]
) -> tuple[set[str], set[str]]:
    """The ops that make some blobs from what is kept, and the blobs that they hand on."""
    repeated: set[str] = set()
    wanted: set[str] = set()
    stack = list(lost)
    while stack:
        blob = stack.pop()
        producer = step.producers.get(blob)
        if blob in wanted or blob in kept or producer is None or producer.name not in inside:
            continue
        wanted.add(blob)
        if producer.name not in repeated:
            repeated.add(producer.name)
            stack += producer.inputs
    return repeated, wanted


def _triggers(step: Graph, block: Sequence[str], readers: Mapping[str, Op]) -> list[str]:
    """The ops whose results let the backward of a block begin.

    They make the gradients that its first ops read. Gradients that come back from the block itself
    cannot be waited for.
    """
    read = (step.producers[b] for op in readers.values() for b in op.inputs if b in step.producers)
    gradients = {op.name for op in read if _is_backward(step, op)}
    arriving = gradients.intersection(step.behind(block)) - step.behind(readers)
    if arriving:
        return sorted(arriving)
    inside = set(block)
    return [name for name in block if inside.isdisjoint(step.successors[name])]
