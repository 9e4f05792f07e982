"""Computing again: the same bits with fewer values alive at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import purine as pu
from purine.analysis.infer import size_in_bytes
from purine.analysis.memory import peak_memory
from purine.core import compile_plan
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Graph
from purine.optimize import recompute
from purine.parallel import SCHEDULES, pipeline, replicate
from purine.parallel.accumulate import accumulate
from purine.solvers import adam, sgd
from tests.parallel.nets import Trained, lenet, same_bits, trained

SMALL = {"image": (3, 32, 32), "classes": 10}

NETS: dict[str, tuple[Callable[[int], Graph], int | str | list[str]]] = {
    "resnet50": (
        lambda batch: pu.zoo.resnet50(batch, width=4, layers=(2, 1), **SMALL),
        "stage*/block*",
    ),
    "densenet121": (
        lambda batch: pu.zoo.densenet121(batch, growth=4, layers=(2, 2), **SMALL),
        ["block1", "block2/layer?"],
    ),
    "mobilenet_v2": (
        lambda batch: pu.zoo.mobilenet_v2(batch, multiplier=0.1, **SMALL),
        ["stage2/block1", "stage3", "stage4/block*"],
    ),
    "nin": (lambda batch: pu.zoo.nin(batch), 3),
}


def step_of(name: str, batch: int = 6) -> Graph:
    return sgd(pu.backward(NETS[name][0](batch)), lr=0.05, momentum=0.9)


def train(step: Graph, *, steps: int = 4) -> Trained:
    """Training in float32, as the nets of the zoo are."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(48, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (48,), generator=generator)
    source = pu.data.ArraySource(values.numpy(), labels.numpy(), classes=10)
    return trained(step, data=pu.data.DataSet("random", source), steps=steps)


def peak(step: Graph) -> int:
    """The most bytes of values that are alive at a time, in the order of the dispatcher."""
    order = compile_plan(step).ops
    kept = {*step.states, *(state.next for state in step.states.values()), NOTHING}
    last = {
        blob: number
        for number, name in enumerate(order)
        for blob in (*step.ops[name].inputs, *step.ops[name].outputs)
        if blob not in kept
    }
    live = most = 0
    for number, name in enumerate(order):
        op = step.ops[name]
        live += sum(size_in_bytes(step.blobs[blob]) for blob in op.outputs if blob not in kept)
        most = max(most, live)
        touched = {*op.inputs, *op.outputs} - kept
        live -= sum(size_in_bytes(step.blobs[blob]) for blob in touched if last[blob] == number)
    assert live == 0
    return most


def again(step: Graph) -> list[str]:
    return [name for name in step.ops if "again/" in name]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("number", [None, 2, 5])
def test_the_same_bits_with_less_memory(name: str, number: int | None) -> None:
    step = step_of(name)
    less = pu.check(recompute(step, number or NETS[name][1]))
    assert again(less)
    assert peak(less) < peak(step)
    same_bits(train(less), train(step))


def test_dropout_and_tied_weights() -> None:
    net = pu.zoo.gpt2(2, context=8, vocabulary=20, width=16, heads=2, layers=3, dropout=0.3)
    step = adam(pu.backward(net), lr=0.01)
    less = pu.check(recompute(step, "layer*"))
    assert peak(less) < peak(step)
    assert any(less.ops[name].kind == "RandomMask" for name in again(less))
    tokens = torch.randint(20, (40, 9), generator=torch.Generator().manual_seed(0)).numpy()
    source = pu.data.ArraySource(tokens[:, :-1], tokens[:, 1:], names=("tokens", "targets"))
    data = pu.data.DataSet("tokens", source)
    same_bits(trained(less, data=data, steps=4), trained(step, data=data, steps=4))


def test_nothing_is_carried_on_twice() -> None:
    step = step_of("resnet50")
    less = recompute(step, "stage*/block*")
    assert less.states == step.states
    assert less.outputs == step.outputs
    made = {blob for name in again(less) for blob in less.ops[name].outputs}
    assert made.isdisjoint(state.next for state in less.states.values())


def test_it_starts_when_the_backward_arrives() -> None:
    less = recompute(step_of("resnet50"), ["stage1/block1", "stage1/block2"])
    order = list(compile_plan(less).ops)
    first = min(order.index(name) for name in again(less))
    assert first > order.index("loss")
    for block in ("stage1/block1", "stage1/block2"):
        begins = [
            name
            for name in again(less)
            if name.startswith(f"again/{block}/")
            and not any(blob.startswith("again/") for blob in less.ops[name].inputs)
        ]
        assert begins
        waits = {after for before, after in less.control if before.startswith("grad/")}
        assert waits.issuperset(begins)


@pytest.mark.parametrize(
    "split",
    [
        lambda step: accumulate(step, 2),
        lambda step: replicate(step, "cpu:0-1"),
        lambda step: replicate(step, "cpu:0-1", batch_norm="synchronised"),
        lambda step: replicate(accumulate(step, 2), "cpu:0-1", batch_norm="synchronised"),
    ],
    ids=["accumulate", "replicate", "synchronised", "both"],
)
def test_with_micro_batches_and_replicas(split: Callable[[Graph], Graph]) -> None:
    step, blocks = step_of("resnet50", 3), NETS["resnet50"][1]
    whole = pu.check(split(step))
    expected = train(whole)
    before, after = pu.check(split(recompute(step, blocks))), pu.check(recompute(whole, blocks))
    for found in (before, after):
        assert again(found)
        assert peak(found) < peak(whole)
        same_bits(train(found), expected)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_micro_batch_of_a_pipeline(schedule: str) -> None:
    """Also those whose forward waits, by the schedule, for the backward of others."""
    whole = pipeline(lenet(2), devices="cpu:0-1", micro=4, schedule=schedule)
    found = pu.check(recompute(whole, 4))
    for m in range(4):
        assert f"micro{m}/again/conv1" in found.ops
    before, after = peak_memory(whole), peak_memory(found)
    assert min(after[place] / before[place] for place in before) < 0.9
    same_bits(trained(found, steps=3), trained(whole, steps=3))


def test_blocks_that_lie_across_each_other() -> None:
    """Two chains through both blocks, in opposite orders: neither may wait for the other."""
    net = pu.Net()
    data, label = net.data((6, 3, 32, 32))
    start = pu.kinds.inner_product(data, 8, name="start")
    ends = []
    for order in ("ab", "ba"):
        x = start
        for number, block in enumerate(order):
            name = f"{block}/{order}{number}"
            x = pu.kinds.inner_product(x, 8, name=f"{name}/fc")
            x = pu.kinds.relu(pu.kinds.tanh(x, name=f"{name}/tanh"), name=f"{name}/relu")
        ends.append(x)
    x = pu.kinds.inner_product(pu.kinds.eltwise(ends, name="join"), 10, name="fc")
    net.output(pu.kinds.softmax_loss(x, label, name="loss"))
    step = sgd(pu.backward(net.graph()), lr=0.05)
    less = pu.check(recompute(step, ["a", "b"]))
    assert again(less)
    same_bits(train(less), train(step))


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ("stage9", "there is no block 'stage9'"),
        (["stage1/blok1"], "did you mean stage1/block1"),
        (["stage1", "stage1/block1"], "is in two blocks"),
        (1, "blocks is 1"),
    ],
)
def test_wrong_requests(blocks: str | list[str] | int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        recompute(step_of("resnet50"), blocks)


def test_a_net_without_backward() -> None:
    with pytest.raises(GraphError, match="has no gradients"):
        recompute(pu.zoo.lenet(batch=2), 2)
