"""Lowering as a whole: each pass has a golden text, and each stage obeys the rules of its level."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import purine as pu
from purine.errors import ConfigError
from purine.graph import Graph, Location
from purine.graph.verify import problems
from purine.kinds import Net, conv, inner_product, relu, softmax_loss
from purine.lowering import LOWERING, Lowered, Options, lower, options_for, passes, products, shares
from purine.lowering.rules import PACKED_RULES, SHARED_MEMORY_RULES, lowering_problems
from purine.parallel import pipeline, replicate
from purine.parallel.accumulate import accumulate
from purine.parallel.reduce import Topology

GOLDEN = Path(__file__).parent / "golden"
NAMES = [item.name for item in LOWERING]
sgd = partial(pu.solvers.sgd, lr=0.1)


def small(
    devices: str = "cpu:0-1", topology: Topology = "native", *, shared: bool = False
) -> Graph:
    """A step of two micro-batches on each of two devices, which most passes rewrite."""
    net = Net()
    x, label = net.data((12, 8))
    net.output(softmax_loss(inner_product(x, 3, name="fc"), label, name="loss"))
    step = accumulate(sgd(pu.backward(net.graph())), 2)
    return replicate(step, devices, topology=topology, bucket=0, shared=shared)


def convolutions() -> Graph:
    """Two convolutions that three micro-batches read the filters of."""
    net = Net()
    x, label = net.data((2, 16, 32, 32))
    x = relu(conv(x, 16, kernel=3, pad=1, bias=False, name="conv1"), name="relu1")
    x = conv(x, 16, kernel=1, bias=False, name="conv2")
    net.output(softmax_loss(inner_product(x, 3, name="fc"), label, name="loss"))
    return pu.layout(accumulate(sgd(pu.backward(net.graph())), 3), "channels-last")


def changed_lines(before: Lowered, after: Lowered) -> str:
    """The lines of text that a pass removes and adds."""
    old, new = str(before).splitlines(), str(after).splitlines()
    lines = [f"- {line}" for line in old if line not in new]
    lines += [f"+ {line}" for line in new if line not in old]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_each_pass_has_a_golden_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "packing" and not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no library for convolutions here")
    monkeypatch.setattr(shares, "_LARGE", 0)
    monkeypatch.setattr(shares, "_GRAIN", 4)
    two_hosts = small("host0-1:cpu:0", "sharded")
    monkeypatch.setattr(products, "_LARGE", 0)
    given = {"packing": convolutions(), "hosts": two_hosts, "products": two_hosts}
    step = pu.check(given.get(name, small()))
    compare_golden(name, step, f"{name}.txt")


def test_collectives_between_hosts_have_a_golden_text() -> None:
    compare_golden("hosts", small("host0-1:cpu:0"), "hosts_native.txt")


def test_values_on_the_board_have_a_golden_text() -> None:
    compare_golden("hosts", small("host0-1:cpu:0", "sharded", shared=True), "hosts_shared.txt")


def compare_golden(name: str, step: Graph, golden: str) -> None:
    index = NAMES.index(name)
    options = Options(segments=True, host="host1" if name in ("hosts", "products") else None)
    before = lower(step, options, after=NAMES[index - 1]) if index else Lowered(step)
    text = changed_lines(before, lower(step, options, after=name))
    file = GOLDEN / golden
    if os.environ.get("PURINE_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def steps() -> dict[str, Callable[[], Graph]]:
    def lenet() -> Graph:
        return sgd(pu.backward(pu.zoo.lenet(batch=8)), momentum=0.9)

    return {
        "one device": lenet,
        "replicas": lambda: replicate(lenet(), "cpu:0-1"),
        "ring": lambda: replicate(lenet(), "cpu:0-2", topology="ring"),
        "native": lambda: replicate(lenet(), "cpu:0-1", topology="native"),
        "GPUs": lambda: replicate(lenet(), "cuda:0-1", topology="native"),
        "pipeline": lambda: pipeline(lenet(), devices="cpu:0-1", micro=4),
        "shards": lambda: pu.compose(pu.zoo.lenet(batch=8), solver=sgd, devices="cpu:0-1", model=2),
        "packed": convolutions,
    }


@pytest.mark.parametrize("name", steps())
def test_every_stage_obeys_the_rules_of_its_level(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "_LARGE", 0)
    step = pu.check(steps()[name]())
    for item in LOWERING:
        graph = lower(step, Options(segments=True), after=item.name).graph
        assert list(lowering_problems(graph, item.rules)) == []


def test_a_lowered_graph_may_break_only_the_rules_that_lowering_gives_up() -> None:
    step = pu.check(steps()["replicas"]())
    graph = lower(step, after="aliases").graph
    found = problems(graph)
    assert found
    assert all(" reads " in str(error) and " at host" in str(error) for error in found)
    packed = lower(pu.check(convolutions()), after="packing").graph
    assert all("layout" in str(error) for error in problems(packed))


def test_blobs_in_another_memory_need_a_copy() -> None:
    step = pu.check(steps()["one device"]())
    far = {
        name: replace(blob, location=Location(device="cuda:0")) if name == "conv1/weight" else blob
        for name, blob in step.blobs.items()
    }
    found = list(lowering_problems(replace(step, blobs=far), SHARED_MEMORY_RULES, step))
    assert any("op 'conv1' at" in str(error) for error in found)
    other_host = {
        name: replace(blob, location=Location("10.0.0.2")) if name == "conv1" else blob
        for name, blob in step.blobs.items()
    }
    found = list(lowering_problems(replace(step, blobs=other_host), PACKED_RULES, step))
    assert {error.blob for error in found} >= {"conv1"}


def test_a_pass_that_breaks_the_graph_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(graph: Graph, options: Options) -> Lowered:
        return Lowered(replace(graph, ops={k: v for k, v in graph.ops.items() if k != "conv1"}))

    def mistyped(graph: Graph, options: Options) -> Lowered:
        op = replace(graph.ops["conv2"], inputs=graph.ops["conv2"].inputs[:1])
        return Lowered(replace(graph, ops={**graph.ops, "conv2": op}))

    step = pu.check(steps()["one device"]())
    for wrong, message in ((mistyped, "op 'conv2'"), (forgetful, "inputs of the graph")):
        index = NAMES.index("shares")
        broken = replace(LOWERING[index], function=wrong)
        monkeypatch.setattr(passes, "LOWERING", (*LOWERING[:index], broken))
        with pytest.raises(AssertionError, match=f"'shares' returned a wrong graph: .*{message}"):
            lower(step)


def test_a_pass_that_changes_nothing_returns_the_same_graph() -> None:
    step = pu.check(steps()["one device"]())
    assert lower(step).graph is step


def test_options_and_stages() -> None:
    step = pu.check(steps()["replicas"]())
    assert options_for(step) == Options(segments=True)
    assert options_for(pu.check(steps()["GPUs"]())) == Options(segments=False)
    assert not lower(step).members
    full = lower(step, Options(segments=True))
    assert full.unsegmented == lower(step, after="packing").graph
    assert str(full).splitlines()[-1].startswith("segment ")
    with pytest.raises(ConfigError, match="no lowering pass 'segment'") as caught:
        lower(step, after="segment")
    assert caught.value.expected == "one of " + ", ".join(NAMES)
    assert "did you mean 'segments'?" in caught.value.remedy


def test_passes_say_what_they_are_for() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(item.why.endswith(".") for item in LOWERING)
