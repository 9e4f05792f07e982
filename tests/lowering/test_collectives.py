"""Collectives run as the devices allow, in one order; NCCL itself is a stand-in, no GPU needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import purine as pu
from purine.core import compile_plan
from purine.graph import Builder, Graph, Location, Op
from purine.kinds.average import Average
from purine.lowering import collectives
from purine.lowering.aliases import without_aliases
from purine.lowering.collectives import Cards, NcclReduce, without_collectives
from purine.lowering.hosts import part_of
from purine.lowering.together import BROADCAST, REDUCE
from purine.parallel import Scheme, replicate
from purine.recipe import compose
from purine.registry.aten import device_of
from purine.registry.lookup import lookup
from purine.runtime.streams import stream_plan
from tests.parallel.nets import agree, lenet, trained


def reductions(graph: Graph) -> list[Op]:
    return [op for op in graph.ops.values() if op.kind == "Reduce"]


def native(devices: str, bucket: int = 0) -> Graph:
    return replicate(lenet(4), devices, topology="native", bucket=bucket)


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test say how many cards there are."""
    device_of.cache_clear()
    yield monkeypatch
    device_of.cache_clear()


@pytest.mark.parametrize("bucket", [0, 1 << 16])
@pytest.mark.parametrize("batches", [(4, 4, 4), (2, 4, 6)])
def test_sets_of_cores_run_what_sharded_runs(batches: Sequence[int], bucket: int) -> None:
    steps = [lenet(batch) for batch in batches]
    found = without_collectives(
        without_aliases(replicate(steps, "cpu:0-2", topology="native", bucket=bucket)).graph
    )
    assert not found.kernels
    assert found.graph == without_aliases(replicate(steps, "cpu:0-2", bucket=bucket)).graph


def test_a_graph_without_collectives_stays_as_it_is() -> None:
    step = replicate(lenet(4), "cuda:0-1")
    assert without_collectives(step, by_nccl=True).graph is step


def test_logical_gpus_on_one_card_add_up_in_place(cards: pytest.MonkeyPatch) -> None:
    step = native("cuda:0-1")
    cards.setattr(torch.cuda, "device_count", lambda: 1)
    device_of.cache_clear()
    found = without_collectives(step, by_nccl=True)
    assert not found.kernels
    assert not reductions(found.graph)
    assert found.graph.control == step.control


@pytest.mark.parametrize(("there", "by_nccl"), [(2, True), (4, False)])
def test_cards_without_nccl_or_with_several_replicas_copy_and_add_up(
    cards: pytest.MonkeyPatch, there: int, by_nccl: bool
) -> None:
    step = native("cuda:0-3")
    cards.setattr(torch.cuda, "device_count", lambda: there)
    device_of.cache_clear()
    found = without_collectives(step, by_nccl=by_nccl)
    assert not found.kernels
    assert reductions(found.graph) == reductions(step)


def test_gpus_that_meet_those_of_other_hosts_use_no_second_nccl(
    cards: pytest.MonkeyPatch,
) -> None:
    cards.setattr(torch.cuda, "device_count", lambda: 2)
    cards.setattr(collectives, "has_nccl", lambda: True)
    device_of.cache_clear()
    inner = native("cuda:0-1")
    assert without_collectives(inner).kernels
    hosts = ("host0", "host1")
    devices = ",".join(f"{host}:cpu:0,{host}:cuda:0-1" for host in hosts)
    step = replicate(inner, devices, topology="native")
    for host in hosts:
        part = part_of(step, host)
        assert {op.kind for op in part.ops.values()} >= {"Reduce", REDUCE, BROADCAST}
        found = without_collectives(part)
        assert not found.kernels
        assert found.graph == part


def test_parts_that_are_elsewhere_are_brought_to_the_owner() -> None:
    op = Op("mean", "Reduce", ("a", "b"), ("c",), location=Location(device="cpu:1"))
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
    assert torch.equal(lookup(op).bind(op)(*parts), torch.tensor([2.0, 4.0]))  # type: ignore[arg-type]


def order_of(graph: Graph, names: set[str]) -> list[str]:
    """The ops in the order that control edges fix, if they fix one."""
    following = {a: b for a, b in graph.control if {a, b} <= names}
    (first,) = names - set(following.values())
    found = [first]
    while found[-1] in following:
        found.append(following[found[-1]])
    assert set(found) == names
    return found


def test_the_collectives_of_cards_have_one_order_that_of_their_gradients() -> None:
    step = native("cuda:0-2")
    found = without_collectives(step, by_nccl=True)
    assert found.kernels.keys() == {op.name for op in reductions(step)}
    order = order_of(found.graph, set(found.kernels))
    assert [name.split("/")[2] for name in order[::2]] == ["fc2", "fc1", "conv2", "conv1"]
    assert pu.check(found.graph) == found.graph


def test_every_card_of_replicated_pipelines_has_an_order_of_its_own() -> None:
    net = pu.zoo.lenet(batch=8)
    scheme = Scheme.parse("data=2,pipeline=2,micro=2,topology=native,bucket=0")
    step = compose(
        net, solver=lambda step: pu.solvers.sgd(step, lr=0.1), devices="cuda:0-3", scheme=scheme
    )
    found = without_collectives(step, by_nccl=True)
    groups: dict[tuple[str, ...], set[str]] = {}
    for op in reductions(step):
        key = tuple(step.blobs[name].location.device for name in op.inputs)
        groups.setdefault(key, set()).add(op.name)
    assert groups.keys() == {("cuda:0", "cuda:2"), ("cuda:1", "cuda:3")}
    for names in groups.values():
        order_of(found.graph, names)
    assert not any(
        a in one and b in other
        for a, b in found.graph.control
        for one in groups.values()
        for other in groups.values()
        if one is not other
    )


def test_accumulated_replicas_reduce_in_one_order_too() -> None:
    step = pu.parallel.accumulate(native("cuda:0-1"), 2)
    found = without_collectives(step, by_nccl=True)
    assert len(found.kernels) == 2 * len(reductions(native("cuda:0-1")))
    order_of(found.graph, set(found.kernels))


def test_groups_that_share_a_card_wait_for_each_other() -> None:
    builder = Builder()
    for number in range(3):
        builder.blob(f"g{number}", (2,), location=Location(device=f"cuda:{number}"))
    for one, other in ((0, 1), (1, 2)):
        place = Location(device=f"cuda:{one}")
        mean = builder.blob(f"mean{one}", (2,), location=place)
        builder.op(f"reduce{one}", "Reduce", [f"g{one}", f"g{other}"], [mean], location=place)
    found = without_collectives(builder.graph(), by_nccl=True)
    assert len(found.graph.control) == 1


def test_a_collective_waits_for_all_replicas_and_its_readers_for_it() -> None:
    step = native("cuda:0-1")
    graph = without_collectives(step, by_nccl=True).graph
    plan = compile_plan(graph)
    streams = stream_plan(graph, plan)
    number = {name: index for index, name in enumerate(plan.ops)}
    for op in reductions(graph):
        waited = {before for before, ago in streams.waits[number[op.name]] if ago == 0}
        assert {number[graph.producers[name].name] for name in op.inputs} <= waited
        assert set(op.inputs) <= set(streams.foreign[number[op.name]])
        for reader in graph.consumers[op.outputs[0]]:
            same = plan.station[number[reader.name]] == plan.station[number[op.name]]
            assert same or (number[op.name], 0) in streams.waits[number[reader.name]]


@dataclass
class Recorder:
    """A stand-in for CUDA and NCCL, which adds up on the CPU and notes what is done in what order.

    `on` is the stream that is current.
    """

    log: list[tuple[object, ...]] = field(default_factory=list)
    on: str = "own"
    roots: list[int] = field(default_factory=list)
    lines: list[list[Tensor]] = field(default_factory=list)

    def stream(self, card: object) -> Stream:
        return Stream(f"side {card}", self)

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        before, self.on = self.on, stream.name
        yield
        self.on = before

    def reduce(
        self, inputs: list[Tensor], *, output: Tensor, root: int, streams: list[Stream]
    ) -> None:
        assert all(line.is_contiguous() and line.dim() == 1 for line in (*inputs, output))
        assert len({line.dtype for line in (*inputs, output)}) == 1
        self.roots.append(root)
        self.lines.append([line.clone() for line in inputs])
        self.log.append(("nccl", *(stream.name for stream in streams)))
        output.copy_(torch.stack(inputs).sum(0))


@dataclass
class Stream:
    name: str
    cuda: Recorder

    def record_event(self) -> str:
        self.cuda.log.append(("record", self.name))
        return self.name

    def wait_event(self, event: str) -> None:
        self.cuda.log.append(("wait", self.name, event))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "Stream", recorder.stream)
    monkeypatch.setattr(torch.cuda, "stream", recorder.using)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda card: Stream("own", recorder))
    monkeypatch.setattr(torch.cuda.nccl, "reduce", recorder.reduce)
    return recorder


def kernel(count: int, root: int = 0, **settings: object) -> NcclReduce:
    op = Op("reduce", "Reduce", (), (), settings)  # type: ignore[arg-type]
    return NcclReduce(op, [torch.device("cuda", k) for k in range(count)], root, Cards())


def test_the_call_of_nccl_begins_behind_the_parts_and_the_op_ends_behind_it(cuda: Recorder) -> None:
    parts = [torch.full((2, 3), float(k)) for k in (1, 2, 6)]
    found = kernel(3, root=1)(*parts)
    assert isinstance(found, Tensor)
    assert torch.equal(found, torch.full((2, 3), 3.0))
    assert cuda.roots == [1]
    assert [line.tolist() for line in cuda.lines[0]] == [[1.0] * 6, [2.0] * 6, [6.0] * 6]
    sides = [f"side cuda:{k}" for k in range(3)]
    assert cuda.log == [
        ("record", "own"),
        *(("wait", side, "own") for side in sides),
        ("nccl", *sides),
        *(step for side in sides for step in (("record", side), ("wait", "own", side))),
    ]
    assert [part.mean().item() for part in parts] == [1.0, 2.0, 6.0]


def test_the_streams_of_cards_are_used_again(cuda: Recorder) -> None:
    cards = Cards()
    card = torch.device("cuda", 0)
    assert cards.stream(card) is cards.stream(card)


LAYOUTS = [
    (torch.randn(3, 4, 2, 2), torch.contiguous_format, torch.contiguous_format),
    (torch.randn(3, 4, 2, 2), torch.channels_last, torch.channels_last),
    (torch.randn(3, 4, 2, 2), torch.channels_last, torch.contiguous_format),
]


@pytest.mark.parametrize("weights", [None, (0.25, 0.75)])
@pytest.mark.parametrize(("value", "one", "other"), LAYOUTS)
def test_buckets_of_any_layout_and_dtype_give_the_mean(
    cuda: Recorder,
    weights: tuple[float, ...] | None,
    value: Tensor,
    one: torch.memory_format,
    other: torch.memory_format,
) -> None:
    first = [value.contiguous(memory_format=one), torch.randn(5).double(), torch.randn(3, 2).t()]
    second = [
        (2 * value).contiguous(memory_format=other),
        torch.randn(5).double(),
        torch.ones(2, 3),
    ]
    settings = {"groups": 3} | ({} if weights is None else {"weights": weights})
    found = kernel(2, **settings)(*first, *second)
    expected = Average(*first, *second, groups=3, weights=weights)
    assert len(found) == 3
    for mine, theirs, like in zip(found, expected, first, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.dtype == like.dtype
    assert len(cuda.lines) == 2
    if one == other:
        assert found[0].stride() == first[0].stride()


def test_a_run_gives_the_kernel_what_the_graph_says(cuda: Recorder) -> None:
    """The kernels of a whole step, fed by numbers that tell replicas and blobs apart."""
    step = native("cuda:0-2", bucket=1 << 30)
    found = without_collectives(step, by_nccl=True)
    for op in reductions(step):
        count = len(op.outputs)
        parts = [
            torch.full(step.blobs[name].shape or (), float(10 * (k // count) + k % count))
            for k, name in enumerate(op.inputs)
        ]
        made = found.kernels[op.name](*parts)
        results = [made] if isinstance(made, Tensor) else list(made)
        assert [step.blobs[name].shape for name in op.outputs] == [tuple(x.shape) for x in results]
        for number, value in enumerate(results):
            torch.testing.assert_close(value, torch.full_like(value, 10.0 + number))
        assert f"cuda:{cuda.roots[-1]}" == op.location.device


def test_a_step_calls_nccl_in_the_same_order_in_every_iteration(
    cuda: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets of cores that are taken for cards."""
    step = replicate(lenet(8), "cpu:0-2", topology="native", bucket=1 << 12)
    expected = trained(step)
    monkeypatch.setattr(
        collectives, "device_of", lambda place: torch.device("cuda", int(place.device[-1]))
    )
    monkeypatch.setattr(collectives, "has_nccl", lambda: True)
    agree(trained(step), expected)
    calls = [(root, lines[0].numel()) for root, lines in zip(cuda.roots, cuda.lines, strict=True)]
    count = len(reductions(step))
    steps = len(expected.losses)
    assert len(calls) == steps * count
    assert calls == steps * calls[:count]
