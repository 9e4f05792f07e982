"""Rules for the results of common kinds: what they tell is what torch tells."""

from __future__ import annotations

import random
from typing import Any

import pytest

import purine as pu
from purine.analysis import shapes, tracing
from purine.analysis.infer import spec_of
from purine.analysis.tracing import Inferred, Spec
from purine.graph import Op
from purine.registry.lookup import kinds, lookup

RULES = sorted(
    ["aten.add.Scalar", *(name for name, kind in kinds().items() if kind.facts.shape is not None)]
)


def by_rule(op: Op, inputs: list[Spec]) -> Inferred | None:
    kind = lookup(op)
    if any(kind.problems(op)):
        return None
    defaults = {key: attr.default for key, attr in kind.attributes.items()}
    return shapes.told(op, {**defaults, **op.attributes}, inputs)


def by_torch(op: Op, inputs: list[Spec]) -> Inferred | None:
    try:
        return tracing.infer(lookup(op).bind(op), inputs)
    except Exception:
        return None


def sizes(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.choice((0, 1, 1, 2, 3, 4, 6, 7)) for _ in range(count))


def pair(draw: random.Random, low: int) -> int | tuple[int, int]:
    one, two = draw.randint(low, 3), draw.randint(low, 3)
    return draw.choice((one, (one, two)))


def some_case(kind: str, draw: random.Random) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Attributes and shapes, many of which do not fit together."""
    x = sizes(draw, draw.choice((1, 2, 3, 4, 4, 4, 4)))
    labels = x[:1] + x[2:] if draw.random() < 0.8 else sizes(draw, 1)
    axis = draw.choice((1, 1, 1, 0, -1, 2, 5))
    if kind == "Conv":
        groups, outputs = draw.choice((1, 1, 2, 0)), draw.choice((2, 4, 3))
        depth = (x[1] // max(groups, 1)) if len(x) > 1 and draw.random() < 0.9 else 2
        bias = draw.choice(([], [(outputs,)], [(3,)], [(1, outputs)]))
        settings = {"stride": pair(draw, 0), "pad": pair(draw, -1), "dilation": pair(draw, 0)}
        weight = (outputs, depth, draw.randint(1, 4), draw.randint(1, 4))
        return {**settings, "groups": groups}, [x, weight, *bias]
    if kind == "Pool":
        settings = {"kernel": pair(draw, 0), "stride": pair(draw, 0), "pad": pair(draw, -1)}
        ceil, method = draw.random() < 0.5, draw.choice(("max", "average"))
        return {**settings, "ceil": ceil, "method": method}, [x]
    if kind == "InnerProduct":
        width = 1
        for extent in x[axis:]:
            width *= extent
        weight = (3, width if draw.random() < 0.8 else 5)
        return {"axis": axis}, [x, weight, *draw.choice(([], [(3,)], [(1,)], [(2,)]))]
    if kind in ("SoftmaxLoss", "Accuracy"):
        more = {"top_k": draw.randint(0, 4)} if kind == "Accuracy" else {}
        ignored = draw.choice((None, 1))
        return {"axis": axis, "ignore_label": ignored, **more}, [x, labels]
    if kind == "Softmax":
        return {"axis": axis}, [x]
    if kind == "Dropout":
        return {"ratio": draw.choice((0.0, 0.3, 0.3, 1.0, -0.5))}, [x, (), ()]
    if kind == "Eltwise":
        other = x if draw.random() < 0.7 else sizes(draw, len(x))
        coefficients = draw.choice((None, (1.0, 2.0), (1.0,)))
        return {"coefficients": coefficients}, [x, other]
    if kind == "aten.add.Scalar":
        return {"other": draw.choice((1, 2.5))}, [x]
    return {}, [x]


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_tells_what_torch_tells(kind: str) -> None:
    draw, told = random.Random(kind), 0
    for _ in range(800):
        settings, given = some_case(kind, draw)
        dtype = draw.choice(("float32", "float32", "float32", "float64", "int64", "bfloat16"))
        other = dtype if draw.random() < 0.9 else "float64"
        labelled = kind in ("SoftmaxLoss", "Accuracy", "Dropout")
        second = draw.choice(("int64", "int64", "int32", "float32")) if labelled else other
        if kind == "aten.add.Scalar":
            dtype = draw.choice(("int64", "int64", "int32", "float32"))
        dtypes = [dtype, *[second] * (len(given) - 1)]
        inputs = [Spec(shape, name) for shape, name in zip(given, dtypes, strict=True)]
        op = Op("op", kind, tuple("abc"[: len(given)]), ("y",), settings)
        found = by_rule(op, inputs)
        if found is not None:
            told += 1
            assert found == by_torch(op, inputs), (op, inputs)
    assert told >= 10


@pytest.mark.parametrize("name", ["alexnet", "lenet", "mlp", "nin"])
def test_ops_of_plain_nets_are_told_by_rules(name: str) -> None:
    net = pu.check(pu.zoo.NETS[name](batch=2))
    views = ("Data", "Flatten", "LRN", "Reshape")
    for op in net.ops.values():
        if op.kind not in views:
            inputs = [spec_of(net.blobs[blob]) for blob in op.inputs]
            found = by_rule(op, inputs)
            assert found is not None, op.name
            assert found == by_torch(op, inputs), op.name
