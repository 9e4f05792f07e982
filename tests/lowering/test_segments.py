"""Ops dispatched together give the bits of ops dispatched one by one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.analysis.infer import check
from purine.compile.script import compile_ops, keep_order
from purine.data import ArraySource, DataSet
from purine.data.synthetic import synthetic_images, synthetic_masks, synthetic_tokens
from purine.errors import KernelError
from purine.graph import NOTHING, Attribute, Builder, Filler, Graph, Location, Op
from purine.kinds.average import _PIECE, Average
from purine.lowering import Lowered, Options, lower
from purine.lowering.aliases import without_aliases
from purine.lowering.hosts import part_of
from purine.lowering.segments import (
    SEGMENT,
    SegmentError,
    _arriving,
    _behind_arrivals,
    _team,
    joined,
    segment_kernel,
    segmented,
)
from purine.parallel import pipeline, replicate
from purine.registry.lookup import kinds, lookup
from purine.runtime.executor import Executor, Settings
from purine.runtime.feeding import read_stream
from purine.runtime.program import compile_program
from purine.runtime.values import initial_states
from tests.importers.models import CASES as MODULES
from tests.importers.torch.test_imported import imported_from, made
from tests.runtime.random_graphs import random_graph, same_bits, serial

IMAGE = (3, 32, 32)
ZOO: dict[str, partial[Graph]] = {
    "alexnet": partial(pu.zoo.alexnet, image=(3, 67, 67), width=6, hidden=12),
    "densenet121": partial(pu.zoo.densenet121, growth=4, layers=(1, 2)),
    "googlenet": partial(pu.zoo.googlenet, width=4, hidden=8),
    "lenet": partial(pu.zoo.lenet, image=(3, 16, 16)),
    "mobilenet_v2": partial(pu.zoo.mobilenet_v2, multiplier=0.1),
    "nin": partial(pu.zoo.nin, image=(3, 4, 4)),
    "resnet50": partial(pu.zoo.resnet50, width=4, layers=(2, 1)),
    "vgg16": partial(pu.zoo.vgg16, width=4, hidden=12),
    "vit": partial(pu.zoo.vit, patch=8, layers=2, heads=2, width=8, hidden=16),
}


def net_of(name: str) -> tuple[Graph, DataSet]:
    """A net of the zoo at a small size, with data for it."""
    if name == "gpt2":
        net = pu.zoo.gpt2(3, context=7, vocabulary=11, layers=2, heads=2, width=8)
        return net, synthetic_tokens(7, vocabulary=11, count=16)
    if name == "unet":
        net = pu.zoo.unet(2, image=(3, 16, 16), classes=3, width=4, layers=2)
        data = synthetic_masks((3, 16, 16), classes=3, count=8)
    elif name == "mlp":
        net, data = pu.zoo.mlp(3), synthetic_images((1, 28, 28), classes=10, count=16)
    else:
        make = ZOO[name]
        image = make.keywords.get("image", IMAGE)
        net = make(3, classes=5, image=image)
        data = synthetic_images(image, classes=5, count=16)
    return pu.data.prepare(net, data.train), data


def executed(
    step: Graph,
    data: DataSet | None,
    *,
    segments: bool,
    values: Mapping[str, Tensor] | None = None,
    steps: int = 4,
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """The outputs of each iteration and the last states."""
    states = {**initial_states(step, 1), **(values or {})}
    lowered = lower(step, Options(segments=segments))
    executor = Executor(
        compile_program(lowered, read_stream(step, data)),
        states={name: value.clone() for name, value in states.items()},
        settings=Settings(threads=1),
    )
    assert any(op.kind == SEGMENT for op in executor.graph.ops.values()) == segments
    try:
        outputs = []
        for iteration in range(steps):
            executor.extend(iteration + 1)
            found = executor.wait(iteration)
            outputs.append({name: value.clone() for name, value in found.items()})
        executor.drain()
        return outputs, executor.states()
    finally:
        executor.close()


def same(
    found: tuple[list[dict[str, Tensor]], dict[str, Tensor]],
    expected: tuple[list[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    for one, other in zip((*found[0], found[1]), (*expected[0], expected[1]), strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert torch.equal(one[name], value), name


@pytest.mark.parametrize("name", pu.zoo.NETS)
def test_nets_of_the_zoo_keep_their_bits(name: str) -> None:
    net, data = net_of(name)
    solver = pu.solvers.adam if name in ("gpt2", "vit") else partial(pu.solvers.sgd, momentum=0.9)
    step = solver(pu.solvers.clip_by_norm(pu.backward(net), 1.0), lr=0.01)
    same(executed(step, data, segments=True), executed(step, data, segments=False))


@pytest.mark.parametrize("case", MODULES, ids=str)
def test_modules_of_pytorch_keep_their_bits(case) -> None:  # type: ignore[no-untyped-def]
    module, data, example = made(case)
    imported = imported_from(case, module, example)
    step = pu.solvers.sgd(pu.backward(imported.net), lr=0.1, momentum=0.9)
    found, expected = (
        executed(step, data, segments=segments, values=imported.values)
        for segments in (True, False)
    )
    same(found, expected)


@pytest.mark.parametrize("topology", ["sharded", "server", "tree", "ring", "native"])
@pytest.mark.parametrize("bucket", [0, 1 << 30])
def test_replicas_keep_their_bits(topology: str, bucket: int) -> None:
    net, data = net_of("lenet")
    part = pu.solvers.sgd(pu.backward(net), lr=0.01, momentum=0.9)
    step = replicate(part, "cpu:0-3", topology=topology, bucket=bucket)  # type: ignore[arg-type]
    same(executed(step, data, segments=True), executed(step, data, segments=False))


def well_formed(whole: Graph, found: Lowered) -> None:
    """Every op is alone or in one segment; all inside a segment is in order; there is no cycle."""
    inside = [op.name for members in found.members.values() for op in members]
    alone = [op.name for op in found.graph.ops.values() if op.kind != SEGMENT]
    assert sorted((*inside, *alone)) == sorted(whole.ops)
    owner = {op.name: name for name, members in found.members.items() for op in members}
    assert len(found.graph.order) == len(found.graph.ops)
    place = {name: k for k, name in enumerate(found.graph.order)}
    for name, members in found.members.items():
        assert found.graph.ops[name].kind == SEGMENT
        assert len({(op.location, op.lane) for op in members}) == 1
        many = lookup(members[0]).variants.many is not None
        seen: set[str] = set()
        for op in members:
            before = {whole.producers[blob].name for blob in op.inputs if blob in whole.producers}
            own = {other for other in before if owner.get(other) == name}
            assert own <= (set() if many else seen)
            seen.add(op.name)
    for name, targets in whole.successors.items():
        for target in targets:
            before, after = owner.get(name, name), owner.get(target, target)
            assert before == after or place[before] < place[after]
    made = [blob for op in found.graph.ops.values() for blob in op.outputs if blob != NOTHING]
    assert len(made) == len(set(made))


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int, lanes: int) -> None:
    graph = random_graph(seed, lanes=lanes)
    draw = random.Random(seed)
    cost = {name: draw.random() for name in graph.ops}
    for pieces in (1, 2, 5, 100):
        parts = segmented(
            graph, cost=lambda op: cost[op.name], team=_team, pieces=pieces, least=0.0
        )
        well_formed(graph, parts)
        check(parts.graph)
    well_formed(graph, joined(graph))
    expected, last = serial(graph, 3)
    outputs, states = executed(graph, None, segments=True, values=initial_states(graph, 0), steps=3)
    for one, other in zip((*outputs, states), (*expected, last), strict=True):
        assert all(same_bits(one[name], value) for name, value in other.items())


def chained() -> Graph:
    """Updates of one kind that read from each other, with two rates."""
    b = Builder()
    for name, value in (("slow", 0.1), ("fast", 0.5)):
        b.blob(name, (), "float64")
        b.state(name, filler=Filler("constant", {"value": value}))
    gradient = "start"
    b.blob("start", (3,))
    b.state("start", filler=Filler("gaussian", {"std": 1.0}))
    for k in range(4):
        for name in (f"w{k}", f"v{k}"):
            b.blob(name, (3,))
            b.blob(f"{name}/next", (3,))
            b.state(name, f"{name}/next", Filler("gaussian", {"std": 1.0}))
        b.op(
            f"update{k}",
            "MomentumUpdate",
            [f"w{k}", gradient, f"v{k}", "fast" if k % 2 else "slow"],
            [f"w{k}/next", f"v{k}/next"],
            {"momentum": 0.5},
        )
        gradient = f"w{k}/next" if k < 2 else "start"
    b.outputs = ["w0/next"]
    return check(b.graph())


def test_what_reads_from_a_segment_of_many_is_not_in_it() -> None:
    graph = chained()
    parts = joined(graph)
    well_formed(graph, parts)
    sizes = sorted(len(members) for members in parts.members.values())
    assert sizes == [1, 1, 2]
    same(executed(graph, None, segments=True), executed(graph, None, segments=False))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["lenet", "resnet50", "gpt2"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_what_another_device_waits_for_ends_its_segment(
    name: str, schedule: str, count: int
) -> None:
    step = pu.solvers.sgd(pu.backward(net_of(name)[0]), lr=0.01)
    step = pipeline(step, devices=f"cpu:0-{count - 1}", micro=3, schedule=schedule)
    whole = without_aliases(step).graph
    found = joined(whole)
    well_formed(whole, found)
    assert max(len(members) for members in found.members.values()) > 1
    for members in found.members.values():
        for op in members[:-1]:
            assert not feeds_another_device(whole, op), op.name
    fed = {
        target
        for name, op in whole.ops.items()
        for target in whole.successors[name]
        if op.lane.startswith("compute") and whole.ops[target].location != op.location
    }
    for members in found.members.values():
        if lookup(members[0]).variants.many is None:
            assert fed.isdisjoint(op.name for op in members[1:])


def between_hosts(count: int) -> Graph:
    """A chain of ops on host0: the first and the third read values of host1, which reads the
    fifth."""
    b = Builder()
    own, far = Location("host0", "cpu:0"), Location("host1", "cpu:0")
    for name in ("start", "x0", "x1", "x2", "x3", "x4", "x5"):
        b.blob(name, (count,), location=own)
    b.state("start", "x5", filler=Filler("constant"))
    b.blob("x4/there", (count,), location=far)
    b.op("send", "Copy", ["x4"], ["x4/there"], location=far, lane="inbound")
    for name in ("v", "w"):
        b.blob(name, (count,), location=far)
        b.blob(f"{name}/next", (count,), location=far)
        b.state(name, f"{name}/next", filler=Filler("constant"))
        b.blob(f"{name}/here", (count,), location=own)
        b.op(f"fetch/{name}", "Copy", [name], [f"{name}/here"], location=own, lane="inbound")
        b.op(f"sum/{name}", "aten.add.Tensor", [name, "x4/there"], [f"{name}/next"], location=far)
    for k in range(6):
        inputs = [f"x{k - 1}" if k else "start", *{0: ["v/here"], 2: ["w/here"]}.get(k, [])]
        kind = "aten.relu" if len(inputs) == 1 else "aten.add.Tensor"
        b.op(f"op{k}", kind, inputs, [f"x{k}"], location=own)
    return check(b.graph())


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (64, [["op0", "op1", "op2", "op3", "op4", "op5"]]),
        (1 << 20, [["op0", "op1"], ["op2", "op3", "op4"], ["op5"]]),
    ],
)
def test_large_values_of_other_hosts_end_segments(count: int, expected: list[list[str]]) -> None:
    """Ops before the one that waits need not wait, and what is waited for leaves at once."""
    part = part_of(between_hosts(count), "host0")
    found = joined(part)
    well_formed(part, found)
    dispatched = [name for name in found.graph.ops if name.startswith("op")]
    members = {name: [op.name for op in ops] for name, ops in found.members.items()}
    assert sorted(members.get(name, [name]) for name in dispatched) == expected


def test_a_value_of_another_host_is_waited_for_once() -> None:
    """The backward reads parameters that the forward has read: nothing ends for their sake."""
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(8)), lr=0.1)
    part = part_of(replicate(step, "host0-1:cpu:0"), "host0")
    waiting = _arriving(part, _behind_arrivals(part))
    assert {"replica0/fc1", "replica0/fc2"} <= waiting
    assert not [name for name in waiting if name.startswith("replica0/grad/")]


def test_sums_over_micro_batches_are_in_segments_and_keep_their_bits() -> None:
    net, data = net_of("googlenet")
    step = pu.solvers.sgd(pu.backward(net), lr=0.01, momentum=0.9)
    step = pipeline(step, devices="cpu:0-1", micro=4)
    found = joined(without_aliases(step).graph)
    inside = {op.name for members in found.members.values() for op in members}
    plain = [op for op in step.ops.values() if op.kind == "AddScaled" and not op.attributes]
    assert plain
    assert len([op for op in plain if op.name in inside]) > 0.9 * len(plain)
    same(executed(step, data, segments=True), executed(step, data, segments=False))


def feeds_another_device(graph: Graph, op: Op) -> bool:
    """Whether an op of another compute lane reads a result, itself or over other lanes."""
    waiting = [graph.ops[name] for name in graph.successors[op.name]]
    while waiting:
        reader = waiting.pop()
        if not reader.lane.startswith("compute"):
            waiting += [graph.ops[name] for name in graph.successors[reader.name]]
        elif (reader.location, reader.lane) != (op.location, op.lane):
            return True
    return False


@pytest.mark.parametrize("segments", [True, False])
def test_the_op_that_fails_is_named(segments: bool) -> None:
    values, labels = torch.randn(8, 1, 28, 28).numpy(), torch.full((8,), 10).numpy()
    data = DataSet("wrong", ArraySource(values, labels))
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(4)), lr=0.1)
    with pytest.raises(KernelError, match="out of bounds") as caught:
        executed(step, data, segments=segments)
    assert caught.value.op is not None
    assert caught.value.op.startswith("loss")
    assert "Segment" not in str(caught.value)
    assert "in iteration 0" in str(caught.value)


def test_the_one_of_many_that_fails_is_named() -> None:
    ops = [Op(f"mean{k}", "Average", (f"a{k}", f"b{k}"), (f"mean{k}",)) for k in range(3)]
    names = [name for op in ops for name in op.inputs]
    kernel = segment_kernel(ops, names, [op.name for op in ops], lambda _: None)
    values = [torch.ones(2) for _ in names]
    assert len(kernel(*values)) == 3
    values[3] = torch.ones(5)
    with pytest.raises(SegmentError) as caught:
        kernel(*values)
    assert caught.value.op is ops[1]
    assert [tuple(value.shape) for value in caught.value.inputs] == [(2,), (5,)]


def test_a_failure_is_not_passed_over_where_inputs_were_written_over() -> None:
    """The second time the matrix would be negated twice, and have a root."""
    ops = [
        Op("neg", "aten.neg", ("x",), ("y",)),
        Op("root", "aten.linalg_cholesky", ("y",), ("z",)),
    ]
    kernel = segment_kernel(ops, ["x"], ["z"], lambda op: 0 if op.name == "neg" else None)
    keep_order()
    with pytest.raises(RuntimeError, match="cholesky"):
        kernel(torch.eye(2))


def aten(name: str, *inputs: Tensor, **settings: Attribute) -> tuple[str, tuple[Tensor, ...], dict]:  # type: ignore[type-arg]
    return f"aten.{name}", inputs, settings


REALS = (1e-5, 1 / 3, -1 / 3, 0.1, 1e-300, 1e300, 1e22, math.inf, -math.inf, 0.0, -0.0, 2.0**-1022)
WHOLES = (0, 1, -1, 2**31, 2**63 - 1, -(2**63) + 1)
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16")
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGES = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
CONSTANTS = [
    *(aten("full", size=(2,), fill_value=value, dtype="float64") for value in REALS),
    *(aten("mul.Scalar", X, other=value) for value in REALS),
    *(aten("full", size=(2,), fill_value=value, dtype="int64") for value in WHOLES),
    *(aten("_to_copy", X, dtype=dtype) for dtype in (*DTYPES, "bool")),
    *(aten("zeros", size=(), dtype=dtype) for dtype in DTYPES),
    *(aten("sum.dim_IntList", X, dim=(1,), keepdim=keep) for keep in (True, False)),
    aten("sum.dim_IntList", X, dim=()),
    aten("sum.dim_IntList", X, dim=None),
    aten("roll", X, shifts=(1,), dims=()),
    aten("clamp", X, min=None, max=0.5),
    aten("clamp", X, min=0, max=None),
    aten("leaky_relu", X, negative_slope=1e-5),
    aten("elu", X, alpha=1 / 3),
    aten("gelu", X, approximate="tanh"),
    aten("native_layer_norm", X, normalized_shape=(4,), weight=None, bias=None, eps=1e-5),
    aten("index.Tensor", X, torch.tensor([1, 2]), indices=(None, "$1")),
    aten("split.Tensor", X, split_size=2),
    aten("add.Tensor", X, X, alpha=1 / 3),
    aten("std.correction", X, dim=(1,), correction=0.5),
    aten("masked_fill.Scalar", X, X > 0, value=-math.inf),
    aten("clone", IMAGES, memory_format="channels_last"),
    aten(
        "upsample_bilinear2d.vec",
        IMAGES,
        output_size=None,
        align_corners=False,
        scale_factors=(2, 1.5),
    ),
    aten(
        "convolution_backward",
        torch.ones(1, 3, 2, 2),
        IMAGES,
        torch.ones(3, 2, 3, 3),
        bias_sizes=None,
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        transposed=False,
        output_padding=(0, 0),
        groups=1,
        output_mask=(True, True, False),
    ),
]


@pytest.mark.parametrize(
    ("kind", "inputs", "settings"),
    CONSTANTS,
    ids=[f"{kind}({','.join(f'{k}={v}' for k, v in s.items())})" for kind, _, s in CONSTANTS],
)
def test_constants_survive(
    kind: str, inputs: tuple[Tensor, ...], settings: Mapping[str, Attribute]
) -> None:
    names = tuple(f"input{k}" for k in range(len(inputs)))
    op = Op("op", kind, names, ("out",), settings)
    results = lookup(op).bind(op)(*inputs)
    expected = results if isinstance(results, Tensor) else results[0]
    keep_order()
    found = compile_ops([op], names, ("out",), lambda _: None)(*inputs)
    assert isinstance(found, Tensor)
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(found, expected)
    assert torch.equal(torch.signbit(found), torch.signbit(expected))


@pytest.mark.parametrize("value", [math.nan, 5e-324, True])
def test_what_cannot_be_written_is_run_op_by_op(value: float) -> None:
    b = Builder()
    b.blob("x", (2,), "float64")
    b.state("x", "y", Filler("gaussian", {"std": 1.0}))
    for name in ("a", "y"):
        b.blob(name, (2,), "float64")
    b.op("a", "aten.masked_fill.Scalar", ["x", "mask"], ["a"], {"value": value})
    b.blob("mask", (2,), "bool")
    b.op("mask", "aten.gt.Scalar", ["x"], ["mask"], {"other": 0})
    b.op("y", "aten.neg", ["a"], ["y"])
    b.outputs = ["a"]
    graph = check(b.graph())
    found, expected = (executed(graph, None, segments=segments) for segments in (True, False))
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_what_runs_op_by_op_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ops = [
        Op("worst", "aten.full_like", ("x",), ("worst",), {"fill_value": math.nan}),
        Op("best", "aten.neg", ("worst",), ("best",)),
    ]
    for _ in range(2):
        kernel = segment_kernel(ops, ["x"], ["best"], lambda _: None)
        assert kernel(torch.ones(2)).isnan().all()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    reason = "RuntimeError: TorchScript's text cannot express NaN"
    assert said == f"segment worst to best is not compiled and runs op by op: {reason}"


def rows(kind: str, count: int, layout: Callable[[Tensor], Tensor], shape: Sequence[int]) -> list:  # type: ignore[type-arg]
    """Inputs of several updates of a kind, with one rate."""
    generator = torch.Generator().manual_seed(1)
    rate, clock = torch.tensor(0.05, dtype=torch.float64), torch.tensor(4)
    slots = len(kinds()[kind].variants.over) - 1
    made = []
    for _ in range(count):
        drawn = [torch.randn(tuple(shape), generator=generator) for _ in range(2 + slots)]
        tensors = [layout(value) for value in (*drawn[:2], *(item.abs() for item in drawn[2:]))]
        made.append([*tensors, rate, *([clock] if kind == "AdamUpdate" else [])])
    return made


UPDATES: list[tuple[str, dict[str, Attribute]]] = [
    ("MomentumUpdate", {"momentum": 0.9}),
    ("MomentumUpdate", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "lr_mult": 2.0}),
    ("MomentumUpdate", {"momentum": 0.9, "lr_in_momentum": True, "weight_decay": 0.1}),
    ("AdamUpdate", {"weight_decay": 0.1}),
    ("AdamUpdate", {"weight_decay": 0.1, "decoupled": True, "lr_mult": 2.0}),
    ("AdamUpdate", {"correct_eps": True}),
]
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "contiguous": ((2, 3, 5, 7), lambda t: t),
    "channels_last": ((2, 3, 5, 7), lambda t: t.contiguous(memory_format=torch.channels_last)),
    "transposed": ((7, 5), lambda t: t.t().contiguous().t()),
    "sparse": ((7, 10), lambda t: t[:, ::2]),
    "scalar": ((), lambda t: t),
    "long": ((3, _PIECE + 1), lambda t: t),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kind", "settings"), UPDATES)
@pytest.mark.parametrize("rates", [1, 2])
def test_many_updates_have_the_bits_of_single_ones(
    kind: str, settings: dict[str, Attribute], layout: str, rates: int
) -> None:
    shape, arranged = LAYOUTS[layout]
    op = Op("update", kind, (), (), settings)
    single, many = (rows(kind, 3, arranged, shape) for _ in range(2))
    if rates == 2:
        place = kinds()[kind].inputs.index("lr")
        single[1][place] = many[1][place] = torch.tensor(0.5, dtype=torch.float64)
    expected = [lookup(op).bind_overwrite(op)(*row) for row in single]
    found = lookup(op).bind_many(op)(*(list(column) for column in zip(*many, strict=True)))
    for one, other in zip(zip(*found, strict=True), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for one, other in zip(many, single, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_ops_of_one_segment_run_in_the_same_iterations() -> None:
    b = Builder()
    b.blob("x", (4, 4))
    b.state("x")
    for index, every in enumerate((1, 1, 2, 2, 2, 3)):
        name = b.blob(f"y{index}", (4, 4))
        b.op(name, "aten.tanh", ["x"], [name], every=every)
    lowered = joined(check(b.graph()))
    assert sorted(len(ops) for ops in lowered.members.values()) == [2, 3]
    for name, ops in lowered.members.items():
        assert {(op.every, op.phase) for op in ops} == {(lowered.graph.ops[name].every, 0)}


def test_each_update_of_a_shared_state_stays_alone() -> None:
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4, hidden=(8,))), lr=0.1, momentum=0.5)
    graph = pu.parallel.serve(step, "cpu:0-1", "ssp")
    lowered = lower(graph, Options(segments=True))
    inside = {op.name for ops in lowered.members.values() for op in ops}
    shared = {name for name, state in graph.states.items() if state.shared}
    pushes = {op.name for op in graph.ops.values() if shared.intersection(op.inputs)}
    assert pushes & {name for name in graph.ops if "/update/" in name}
    assert inside
    assert not inside & pushes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("weights", [None, (0.5, 0.3, 0.2)], ids=["even", "uneven"])
@pytest.mark.parametrize("mixed", [False, True])
def test_many_averages_have_the_bits_of_single_ones(
    layout: str, groups: int, weights: tuple[float, ...] | None, mixed: bool
) -> None:
    shape, arranged = LAYOUTS[layout]
    generator = torch.Generator().manual_seed(0)
    ops = [
        [arranged(torch.randn(tuple(shape), generator=generator)) for _ in range(3 * groups)]
        for _ in range(2)
    ]
    if mixed:
        for parts in ops:
            parts[1] = parts[1].contiguous()
    expected = [Average(*parts, weights=weights, groups=groups) for parts in ops]
    settings: dict[str, Attribute] = {"weights": weights, "groups": groups}
    op = Op("mean", "Average", (), (), settings)
    found = lookup(op).bind_many(op)(*(list(column) for column in zip(*ops, strict=True)))
    assert len(found) == groups
    for one, other in zip(zip(*found, strict=True), expected, strict=True):
        wanted = (other,) if isinstance(other, Tensor) else other
        for value, right in zip(one, wanted, strict=True):
            assert torch.equal(value, right)
            assert value.stride() == right.stride()
            assert value.data_ptr() not in {part.data_ptr() for parts in ops for part in parts}
