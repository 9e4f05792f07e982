"""Runs: seeds, resuming, evaluating, and the bits of plain PyTorch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import purine as pu
from purine.errors import CheckpointError, ConfigError, DataError, RunError
from purine.graph import Builder, Graph
from purine.registry.fillers import fill
from tests.runtime.random_graphs import same_bits


def small_data(count: int = 50) -> pu.data.DataSet:
    full = pu.data.fashion_mini()

    def part(source: pu.data.Source, size: int) -> pu.data.Source:
        images, labels = source.batch(np.arange(size))
        return pu.data.ArraySource(images, labels, classes=10)

    return pu.data.DataSet("small", part(full.train, count), part(full.test, 23))


def training(data: pu.data.DataSet, net: Graph | None = None) -> tuple[Graph, Graph]:
    net = pu.data.prepare(net or pu.zoo.mlp(batch=8, hidden=(16,)), data.train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return step, pu.evaluation(net)


def in_lanes(graph: Graph, lanes: int) -> Graph:
    """The same graph with its compute ops dealt out over several lanes."""
    b = Builder(graph)
    for index, op in enumerate(graph.ops.values()):
        if op.lane == "compute" and index % lanes:
            b.ops[op.name] = replace(op, lane=f"compute:{index % lanes}")
    return b.graph()


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(same_bits(left[k], right[k]) for k in left)


@pytest.mark.parametrize("net", ["lenet", "nin"])
def test_one_seed_gives_the_same_bits_on_one_lane_and_on_four(net: str) -> None:
    data = small_data()
    graph = pu.zoo.NETS[net](batch=4, image=(1, 28, 28))
    step, _ = training(data, graph)
    finals = []
    for lanes, prefetch in ((1, 0), (1, 2), (4, 1), (4, 3)):
        with pu.Run(in_lanes(step, lanes), data=data, seed=3, threads=1, prefetch=prefetch) as run:
            losses = [result.loss for result in run.steps(6)]
            finals.append((losses, run.states()))
    for losses, states in finals[1:]:
        assert losses == finals[0][0]
        assert equal(states, finals[0][1])


def test_another_seed_gives_another_run() -> None:
    data = small_data()
    step, _ = training(data)
    losses = []
    for seed in (0, 1):
        with pu.Run(step, data=data, seed=seed) as run:
            losses.append([result.loss for result in run.steps(3)])
    assert losses[0] != losses[1]


@pytest.mark.parametrize("net", ["mlp", "nin"])
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(net: str, tmp_path: Path) -> None:
    data = small_data()
    graph = pu.zoo.NETS[net](batch=4, image=(1, 28, 28))
    step, _ = training(data, graph)
    with pu.Run(step, data=data, seed=5) as run:
        losses = [result.loss for result in run.steps(9)]
        whole = run.states()
    with pu.Run(step, data=data, seed=5) as run:
        list(run.steps(4))
        run.save(tmp_path)
    with pu.Run(step, data=data, seed=99) as run:
        assert run.load(tmp_path) == 4
        assert [result.loss for result in run.steps(5)] == losses[4:]
        assert equal(run.states(), whole)


def test_saving_while_iterations_are_in_flight_changes_nothing(tmp_path: Path) -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data) as run:
        undisturbed = [result.loss for result in run.steps(8)]
    losses = []
    with pu.Run(step, data=data) as run:
        for result in run.steps(8):
            losses.append(result.loss)
            if result.iteration == 3:
                run.save(tmp_path)
    assert losses == undisturbed
    with pu.Run(step, data=data) as run:
        start = run.load(tmp_path)
        assert [result.loss for result in run.steps(8 - start)] == undisturbed[start:]


def test_steps_that_are_abandoned_go_on_where_they_were_left() -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data) as run:
        expected = [result.loss for result in run.steps(6)]
    found = []
    with pu.Run(step, data=data) as run:
        for result in run.steps(6):
            found.append(result.loss)
            if result.iteration == 2:
                break
        found += [result.loss for result in run.steps(3)]
    assert found == expected


def test_a_run_can_be_closed_and_stepped_again() -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data) as run:
        expected = [result.loss for result in run.steps(6)]
    run = pu.Run(step, data=data)
    found = [result.loss for result in run.steps(3)]
    run.close()
    found += [result.loss for result in run.steps(3)]
    run.close()
    assert found == expected


def test_evaluation_counts_every_test_sample_once() -> None:
    """23 samples in batches of 8: the last batch is smaller."""
    data = small_data()
    assert data.test is not None
    step, test = training(data)
    with pu.Run(step, data=data) as run:
        list(run.steps(3))
        found = run.evaluate(test)
        states = run.states()
    images, labels = data.test.batch(np.arange(23))
    x = images.float() / 255
    x = F.relu(F.linear(x.flatten(1), states["fc1/weight"], states["fc1/bias"]))
    x = F.linear(x, states["fc2/weight"], states["fc2/bias"])
    assert found["loss"] == pytest.approx(F.cross_entropy(x, labels).item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((x.argmax(1) == labels).float().mean().item())


def test_evaluation_leaves_the_run_as_it_was() -> None:
    data = small_data()
    step, test = training(data)
    with pu.Run(step, data=data) as run:
        expected = [result.loss for result in run.steps(6)]
    with pu.Run(step, data=data) as run:
        found = [result.loss for result in run.steps(3)]
        run.evaluate(test)
        found += [result.loss for result in run.steps(3)]
    assert found == expected


def test_states_can_be_set() -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data) as run:
        list(run.steps(2))
        run.set_states({"fc1/bias": torch.full((16,), 0.25)})
        assert run.states()["fc1/bias"].tolist() == [0.25] * 16
        assert run.iteration == 2
        with pytest.raises(RunError, match="fc9/bias"):
            run.set_states({"fc9/bias": torch.zeros(1)})


def test_both_layouts_give_the_same_numbers() -> None:
    data = small_data()
    step, test = training(data, pu.zoo.nin(batch=4, image=(1, 28, 28)))
    found = []
    for form in ("contiguous", "channels-last"):
        with pu.Run(pu.layout(step, form), data=data) as run:
            measured = run.evaluate(pu.layout(test, form))["loss"]
            found.append([*(result.loss for result in run.steps(4)), measured])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_wrong_data_is_refused_before_anything_runs() -> None:
    data = small_data()
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=8)), lr=0.1)
    with pytest.raises(DataError) as caught:
        pu.Run(step, data=data)
    assert "input 'data' of the net does not fit 'image' of the data" in str(caught.value)
    assert "expected: float32, [1, 28, 28] a sample" in str(caught.value)
    assert "found: uint8, [1, 28, 28] a sample" in str(caught.value)
    with pytest.raises(DataError, match="the run has none"):
        pu.Run(step)


def test_wrong_options_are_refused() -> None:
    data = small_data()
    step, _ = training(data)
    with pytest.raises(ConfigError, match="prefetch is -1"):
        pu.Run(step, data=data, prefetch=-1)
    with pu.Run(step, data=data) as run:
        for count in (-2, "3", 2.5):
            with pytest.raises(ConfigError, match=f"is {count!r}") as caught:
                run.steps(count)  # type: ignore[arg-type]
            assert caught.value.remedy


def with_losses(*names: str) -> tuple[Graph, Graph]:
    net = pu.Net()
    data, label = net.source([("data", (4, 8), "float32"), ("label", (4,), "int64")])
    for name in names:
        x = pu.kinds.inner_product(data, 3, name=f"{name}/fc")
        net.output(x, pu.kinds.softmax_loss(x, label, name=name))
    net.output(pu.kinds.accuracy(x, label, name="accuracy"))
    return net.graph(), pu.solvers.sgd(pu.backward(net.graph()), lr=0.1)


OWN = (torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)


@pytest.mark.parametrize(
    "transform",
    [
        lambda net, step: step,
        lambda net, step: net,
        lambda net, step: pu.fuse(step),
        lambda net, step: pu.solvers.sgd(pu.backward(pu.mixed(net, "fp16"))),
        lambda net, step: pu.parallel.replicate(
            pu.solvers.sgd(pu.backward(pu.with_batch(net, 2))), "cpu:0-1"
        ),
        lambda net, step: pu.compose(
            net, solver=pu.solvers.sgd, devices="cpu:0-1", data=2, micro=2
        ),
    ],
)
def test_a_single_loss_of_any_name_is_the_loss(
    transform: Callable[[Graph, Graph], Graph],
) -> None:
    net, step = with_losses("surprise")
    net = pu.prune(net, ["surprise", "accuracy"])
    step = pu.prune(step, ["surprise", "accuracy", "lr"])
    with pu.Run(transform(net, step), data=OWN, share_cores=True) as run:
        (result,) = run.steps(1)
        assert result.losses == ("surprise",)
        assert result.loss == result["surprise"] > 0


def test_of_several_losses_one_has_to_be_named() -> None:
    _, step = with_losses("first/loss", "second/loss")
    with pu.Run(step, data=OWN) as run:
        (result,) = run.steps(1)
    assert result["first/loss"] > 0
    with pytest.raises(ConfigError, match="reports 2 losses, none of them as 'loss'") as caught:
        assert result.loss
    assert caught.value.found == "first/loss, second/loss"
    assert caught.value.remedy == "name one: result['first/loss']"
    with pytest.raises(ConfigError, match="has no number 'first/loss/fc'") as caught:
        result["first/loss/fc"]
    with pytest.raises(ConfigError, match="has no number 'nothing'"):
        result["nothing"]


def test_values_may_be_arrays_lists_and_numbers() -> None:
    _, step = with_losses("loss")
    weight, bias = np.full((3, 8), 0.5, np.float32), [1, 2.5, -3]
    with pu.Run(step, data=OWN) as run:
        run.set_states({"loss/fc/weight": weight, "loss/fc/bias": bias, "iteration": 4})
        weight.fill(0)
        states = run.states()
        assert states["loss/fc/weight"].eq(0.5).all()
        assert states["loss/fc/bias"].tolist() == bias
        assert int(states["iteration"]) == 4
        with pytest.raises(RunError, match="cannot take this value") as caught:
            run.set_states({"loss/fc/weight": np.zeros((3, 8))})
        assert caught.value.found == "float64 [3, 8]"
    net = pu.Net()
    pu.kinds.relu(net.input("x", (2,)), name="y")
    for value in ([-1.0, 2.0], np.array([-1, 2], np.float32), (-1, 2)):
        assert pu.compute(net.graph(), {"x": value})["y"].tolist() == [0.0, 2.0]


def test_a_checkpoint_of_another_net_is_refused(tmp_path: Path) -> None:
    data = small_data()
    step, _ = training(data)
    other, _ = training(data, pu.zoo.mlp(batch=8, hidden=(17,)))
    with pu.Run(step, data=data) as run:
        list(run.steps(1))
        run.save(tmp_path)
    with pu.Run(other, data=data) as run, pytest.raises(CheckpointError, match="fc1/weight"):
        run.load(tmp_path)


def in_double(net: Graph) -> Graph:
    """The net with float64 in the place of float32."""
    b = Builder(net)
    for name, blob in net.blobs.items():
        if blob.dtype == "float32":
            b.blobs[name] = replace(blob, dtype="float64")
    return b.graph()


class TorchNet:
    """`lenet` and `nin` in plain PyTorch, over the parameters of the graph."""

    def __init__(self, net: str, run: pu.Run) -> None:
        self.net = net
        self.p = {
            name: value.clone().requires_grad_()
            for name, value in run.states().items()
            if run.graph.states[name].trainable
        }

    def loss(self, x: Tensor, label: Tensor, masks: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(getattr(self, self.net)(x, masks), label)

    def lenet(self, x: Tensor, masks: dict[str, Tensor]) -> Tensor:
        x = F.max_pool2d(self.conv("conv1", x), 2, 2)
        x = F.max_pool2d(self.conv("conv2", x), 2, 2)
        x = F.relu(F.linear(x.flatten(1), self.p["fc1/weight"], self.p["fc1/bias"]))
        return F.linear(x, self.p["fc2/weight"], self.p["fc2/bias"])

    def nin(self, x: Tensor, masks: dict[str, Tensor]) -> Tensor:
        x = self.block(x, 1, 2)
        x = F.max_pool2d(x, 3, 2, ceil_mode=True) * masks["drop1"]
        x = self.block(x, 2, 2)
        x = F.avg_pool2d(x, 3, 2, ceil_mode=True) * masks["drop2"]
        return self.block(x, 3, 1).mean((2, 3))

    def block(self, x: Tensor, number: int, pad: int) -> Tensor:
        x = F.relu(self.conv(f"conv{number}", x, pad))
        for name in (f"cccp{number}a", f"cccp{number}b"):
            x = F.relu(self.conv(name, x))
        return x

    def conv(self, name: str, x: Tensor, pad: int = 0) -> Tensor:
        return F.conv2d(x, self.p[f"{name}/weight"], self.p[f"{name}/bias"], padding=pad)


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rates, as torch has none."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self) -> None:  # type: ignore[override]
        lr, eta, momentum, decay, eps = 0.1, 0.01, 0.9, 1e-3, 1e-8
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    w, g = p.norm(), p.grad.norm()
                    plain = bool(w == 0) or bool(g == 0)
                    ratio = 1.0 if plain else eta * w / (g + decay * w + eps)
                    buffer = self.state[p].get("v", torch.zeros_like(p))
                    buffer = momentum * buffer + ratio * (p.grad + decay * p)
                    self.state[p]["v"] = buffer
                    p -= lr * buffer


Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
SOLVERS: dict[str, tuple[Callable[[Graph], Graph], Optimizer]] = {
    "sgd": (
        lambda g: pu.solvers.sgd(g, lr=0.05),
        lambda p: torch.optim.SGD(p, lr=0.05),
    ),
    "momentum": (
        lambda g: pu.solvers.sgd(g, lr=0.002, momentum=0.9, weight_decay=1e-3),
        lambda p: torch.optim.SGD(p, lr=0.002, momentum=0.9, weight_decay=1e-3),
    ),
    "nesterov": (
        lambda g: pu.solvers.sgd(g, lr=0.002, momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda p: torch.optim.SGD(p, lr=0.002, momentum=0.9, nesterov=True, weight_decay=1e-3),
    ),
    "adagrad": (
        lambda g: pu.solvers.adagrad(g, lr=0.001, weight_decay=1e-3),
        lambda p: torch.optim.Adagrad(p, lr=0.001, weight_decay=1e-3),
    ),
    "rmsprop": (
        lambda g: pu.solvers.rmsprop(g, lr=0.0001, weight_decay=1e-3),
        lambda p: torch.optim.RMSprop(p, lr=0.0001, weight_decay=1e-3),
    ),
    "adadelta": (
        lambda g: pu.solvers.adadelta(g, lr=1.0, weight_decay=1e-3),
        lambda p: torch.optim.Adadelta(p, lr=1.0, weight_decay=1e-3),
    ),
    "adam": (
        lambda g: pu.solvers.adam(g, lr=0.001, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.001, weight_decay=1e-3),
    ),
    "adamw": (
        lambda g: pu.solvers.adamw(g, lr=0.001, weight_decay=1e-2),
        lambda p: torch.optim.AdamW(p, lr=0.001, weight_decay=1e-2),
    ),
    "lars": (
        lambda g: pu.solvers.lars(g, lr=0.1, eta=0.01, momentum=0.9, weight_decay=1e-3),
        Lars,
    ),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("net", ["lenet", "nin"])
def test_twenty_iterations_agree_with_plain_pytorch(net: str, solver: str) -> None:
    attach, optimizer_of = SOLVERS[solver]
    data = small_data()
    image = (1, 28, 28) if net == "lenet" else (1, 16, 16)
    graph = in_double(pu.zoo.NETS[net](batch=2, image=image))
    crop = None if net == "lenet" else 16
    graph = pu.data.prepare(graph, data.train, crop=crop)
    step = attach(pu.backward(graph))
    masks = [op for op in step.ops.values() if op.kind == "RandomMask"]
    step = replace(step, outputs=(*step.outputs, "data", "label", *(op.outputs[0] for op in masks)))
    with pu.Run(step, data=data, seed=1) as run:
        model = TorchNet(net, run)
        optimizer = optimizer_of(list(model.p.values()))
        for result in run.steps(20):
            drawn = {op.name.removesuffix("/mask"): result.outputs[op.outputs[0]] for op in masks}
            optimizer.zero_grad()
            loss = model.loss(result.outputs["data"], result.outputs["label"], drawn)
            loss.backward()
            optimizer.step()
            assert result.loss == pytest.approx(loss.item(), rel=1e-9), result.iteration
            assert result.loss < 100, "agreement means nothing where training diverges"
        final = run.states()
    for name, value in model.p.items():
        torch.testing.assert_close(final[name], value.detach(), rtol=1e-9, atol=1e-11)


class Failing(pu.data.Source):
    """A source whose batches are fine until a given one is asked for."""

    def __init__(self, inner: pu.data.Source, bad: int) -> None:
        self.inner, self.bad, self.reads = inner, bad, 0
        self.fields, self.classes = inner.fields, inner.classes

    def __len__(self) -> int:
        return len(self.inner)

    def batch(self, indices: np.ndarray) -> tuple[Tensor, ...]:
        self.reads += 1
        if self.reads == self.bad:
            raise OSError("the disk is gone")
        return self.inner.batch(indices)


def test_a_run_that_failed_gives_no_states_until_it_is_loaded(tmp_path: Path) -> None:
    data = small_data()
    step, test = training(data)
    with pu.Run(step, data=data) as good:
        list(good.steps(2))
        good.save(tmp_path / "good")
        expected = [result.loss for result in good.steps(2)]
    broken = pu.data.DataSet("broken", Failing(data.train, 6), data.test)
    run = pu.Run(step, data=broken)
    with pytest.raises(RunError, match="the disk is gone"), run:
        list(run.steps(20))
    for attempt in (
        run.states,
        lambda: run.save(tmp_path / "bad"),
        lambda: list(run.steps(1)),
        lambda: run.evaluate(test),
    ):
        with pytest.raises(RunError, match="the disk is gone"):
            attempt()
    assert not (tmp_path / "bad").exists()
    assert run.load(tmp_path / "good") == 2
    assert [result.loss for result in run.steps(2)] == expected
    run.close()


@pytest.mark.parametrize("change", ["close", "load", "set_states"])
def test_a_run_may_be_changed_while_it_is_stepped(change: str, tmp_path: Path) -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data, prefetch=0) as run:
        list(run.steps(1))
        run.save(tmp_path)
        seen = []
        for result in run.steps(4):
            seen.append(result.iteration)
            if len(seen) == 2:
                if change == "close":
                    run.close()
                elif change == "load":
                    run.load(tmp_path)
                else:
                    run.set_states({"fc1/bias": torch.zeros(16)})
        assert seen == ([1, 2, 1, 2] if change == "load" else [1, 2, 3, 4])


@pytest.mark.parametrize("change", ["close", "set_states"])
def test_no_result_is_lost_where_iterations_are_in_flight(change: str) -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data) as run:
        expected = [result.loss for result in run.steps(6)]
        after = run.states()
    with pu.Run(step, data=data) as run:
        found = []
        for result in run.steps(6):
            found.append((result.iteration, result.loss))
            run.close() if change == "close" else run.set_states({})
        assert found == list(enumerate(expected))
        assert run.iteration == 6
        assert equal(run.states(), after)


def test_a_run_that_is_not_closed_ends_its_lanes_when_it_is_gone() -> None:
    data = small_data()
    step, _ = training(data)
    before = set(threading.enumerate())
    run = pu.Run(step, data=data)
    assert len(list(run.steps(2))) == 2
    assert set(threading.enumerate()) > before
    del run
    assert set(threading.enumerate()) == before


def test_first_values_are_not_held_for_the_whole_run() -> None:
    data = small_data()
    net = pu.data.prepare(pu.zoo.mlp(batch=8, hidden=(16,)), data.train)
    step = pu.solvers.adam(pu.backward(pu.mixed(net, "fp16")), lr=1e-3)
    with pu.Run(step, data=data) as run:
        first = weakref.ref(run._settled()[1]["fc1/weight"])
        list(run.steps(2))
        assert first() is None


def test_nothing_is_drawn_for_states_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data()
    step, _ = training(data)
    drawn: list[str] = []

    def counted(*given: Any, name: str, **settings: Any) -> Tensor:
        drawn.append(name)
        return fill(*given, name=name, **settings)

    expected = pu.Run(step, data=data, seed=1)
    values = expected.states()
    monkeypatch.setattr("purine.runtime.values.fill", counted)
    set_early = {name: value for name, value in values.items() if "weight" in name}
    with pu.Run(step, data=data, seed=2) as run, expected:
        run.set_states(set_early)
        run.set_states({"seed": values["seed"]})
        assert not drawn
        found = [result.loss for result in run.steps(3)]
        assert drawn
        assert drawn.count("fc1/bias") == 1
        assert not set(drawn) & {*set_early, "seed"}
        assert found == [result.loss for result in expected.steps(3)]


def test_set_states_holds_no_state_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """While states are copied, those that have been are let go one by one."""
    data = small_data()
    step, _ = training(data)
    alive: list[int] = []
    with pu.Run(step, data=data) as run:
        list(run.steps(2))
        given = {"fc1/weight": run.states()["fc1/weight"]}
        originals = [weakref.ref(value) for value in run._settled()[1].values()]
        clone = Tensor.clone

        def watched(value: Tensor, **settings: Any) -> Tensor:
            alive.append(sum(original() is not None for original in originals))
            return clone(value, **settings)

        monkeypatch.setattr(Tensor, "clone", watched)
        run.set_states(given)
        monkeypatch.undo()
        others = len(originals) - 1
        assert alive == [*range(others, 0, -1), 0]
        list(run.steps(2))


def test_what_has_no_mean_is_not_evaluated() -> None:
    data = small_data()
    net = pu.data.prepare(pu.zoo.mlp(batch=8, hidden=(16,)), data.train)
    with (
        pu.Run(training(data)[0], data=data) as run,
        pytest.raises(ConfigError, match=r"output 'fc2' has no mean[^$]*shape \[8, 10\]"),
    ):
        run.evaluate(pu.evaluation(net, ["loss", "fc2"]))


def test_a_step_with_inputs_is_not_run() -> None:
    net = pu.Net()
    x, label = net.input("x", (4, 3)), net.input("label", (4,), "int64")
    pu.kinds.softmax_loss(pu.kinds.inner_product(x, 2, name="fc"), label, name="loss")
    run = pu.Run(pu.solvers.sgd(pu.backward(net.graph()), lr=0.1))
    assert run.states()["fc/weight"].shape == (2, 3)
    with pytest.raises(ConfigError, match=r"nothing makes blob 'x'[^$]*inputs x, label"):
        next(run.steps(1))


def test_the_trace_outlives_the_lanes() -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data, record=True) as run:
        list(run.steps(3))
    assert {event.iteration for event in run.trace.events} == {0, 1, 2}


def test_a_trace_has_what_was_recorded_before_states_were_set() -> None:
    data = small_data()
    step, _ = training(data)
    with pu.Run(step, data=data, record=True) as run:
        list(run.steps(2))
        before = run.trace
        run.set_states({"fc1/bias": torch.zeros(16)})
        list(run.steps(3))
        run.close()
        list(run.steps(1))
    found = run.trace
    assert found.iterations == tuple(range(6))
    assert set(before.events) < set(found.events)
    assert found.edges == before.edges


def test_a_trace_of_segments_is_that_of_what_was_dispatched() -> None:
    data = small_data()
    step, _ = training(data)
    losses = []
    for record in (False, True, "segments"):
        with pu.Run(step, data=data, record=record) as run:  # type: ignore[arg-type]
            losses.append([result.loss for result in run.steps(3)])
    assert losses[0] == losses[1] == losses[2]
    assert "Segment" in {event.kind for event in run.trace.events}
    names = {event.op for event in run.trace.events}
    assert len(names) < len(step.ops)
    assert run.trace.edges
    assert all({before, after} <= names for before, after, _ in run.trace.edges)


def test_what_cannot_be_recorded_is_refused() -> None:
    step, _ = training(small_data())
    with pytest.raises(ConfigError, match="record is 'lanes'"):
        pu.Run(step, record="lanes")  # type: ignore[arg-type]


def test_measuring_with_a_training_step_leaves_the_parameters_alone() -> None:
    data = small_data()
    step, _ = training(data, pu.zoo.mlp(batch=23, hidden=(16,)))
    testing = Builder(pu.prune(step, ["loss"]))
    testing.ops["data"] = replace(
        testing.ops["data"], attributes={"source": "test", "shuffle": False}
    )
    with pu.Run(step, data=data) as run:
        before = run.states()
        run.evaluate(testing.graph())
        assert equal(run.states(), before)


def test_a_field_that_nobody_reads_is_dropped() -> None:
    data = small_data()
    step, _ = training(data)
    net = pu.data.prepare(pu.zoo.mlp(batch=8, hidden=(16,)), data.train)
    b = Builder(pu.evaluation(net, ["fc2"]))
    assert b.ops["data"].outputs == ("data/raw", "")
    b.op("mean", "aten.mean", ["fc2"], [b.blob("mean", ())])
    b.outputs = ["mean"]
    with pu.Run(step, data=data) as run:
        assert abs(run.evaluate(b.graph())["mean"]) > 0


def test_fed_values_have_to_fit() -> None:
    net = pu.Net()
    pu.kinds.relu(net.input("x", (4,)), name="y")
    with pytest.raises(RunError, match="blob 'x' cannot take this value"):
        pu.compute(net.graph(), {"x": torch.zeros(3)})
    with pytest.raises(RunError, match="not fed"):
        pu.compute(net.graph())
    with pytest.raises(RunError, match="no input or state 'z'"):
        pu.compute(net.graph(), {"x": torch.zeros(4), "z": torch.zeros(4)})
    with pytest.raises(RunError, match="no input or state 'wieght'"):
        pu.compute(net.graph(), {"x": torch.zeros(4)}, states={"wieght": torch.zeros(4)})


def test_a_failure_is_not_taken_for_the_end_of_the_steps() -> None:
    data = torch.randn(8, 1, 28, 28), torch.zeros(8, dtype=torch.int64)
    with pu.Run(pu.backward(pu.zoo.mlp(batch=4)), data=data) as run:

        def ends(left: int) -> Never:
            raise StopIteration

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "_step", ends)
            with pytest.raises(RuntimeError, match="StopIteration"):
                list(run.steps(2))


def test_a_run_stops_recording_when_asked_to() -> None:
    data = small_data()
    with pu.Run(training(data)[0], data=data, record=True) as run:
        list(run.steps(2))
        run.close()
        events = len(run.trace.events)
        run.record = False
        list(run.steps(2))
        assert events > 0
        assert len(run.trace.events) == events
