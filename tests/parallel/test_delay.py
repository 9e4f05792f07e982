"""Parameters that are read late: the numbers of a loop by hand, in every scheme, after a save."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, GraphError
from purine.graph import Graph
from purine.parallel import Scheme, accumulate, delay, floating, pipeline, replicate, serve, shard
from tests.parallel.nets import agree, float64, images, in_order, lenet, same_bits, trained

SOLVER = {"lr": 0.05, "momentum": 0.9}


def mlp(batch: int = 12) -> Graph:
    return pu.solvers.sgd(pu.backward(float64(pu.zoo.mlp(batch=batch))), **SOLVER)


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_an_iteration_reads_the_parameters_of_so_many_iterations_ago(staleness: int) -> None:
    """Beside a loop that computes each gradient with a run of its own."""
    steps, data = 6, images()
    step = in_order(mlp())
    parameters = [name for name, state in step.states.items() if state.trainable]
    with pu.Run(step, data=data, seed=3) as run:
        history = [run.states()]
    moving = {name: torch.zeros_like(value) for name, value in history[0].items()}
    losses = []
    for iteration in range(steps):
        late = history[max(0, iteration - staleness)]
        with pu.Run(in_order(mlp()), data=data, seed=3) as once:
            once.set_states({name: late[name] for name in parameters})
            once.set_states({"iteration": torch.tensor(iteration)})
            (result,) = once.steps(1)
            losses.append(result.loss)
            behind = once.states()
        now = dict(history[-1])
        for name in parameters:
            gradient = (late[name] - behind[name]) / SOLVER["lr"]
            moving[name] = SOLVER["momentum"] * moving[name] + gradient
            now[name] = history[-1][name] - SOLVER["lr"] * moving[name]
        history.append(now)
    found = trained(delay(step, staleness), data=data, steps=steps)
    torch.testing.assert_close(found.losses, losses)
    for name in parameters:
        torch.testing.assert_close(found.states[name], history[-1][name])


def net(batch: int) -> Graph:
    return float64(pu.zoo.mlp(batch=batch))


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("scheme", ["data=2", "pipeline=2,micro=2", "data=2,micro=2,floating=true"])
def test_every_scheme_gives_the_numbers_of_one_device(scheme: str, staleness: int) -> None:
    alone = trained(delay(lenet(8), staleness))
    step = pu.compose(
        float64(pu.zoo.lenet(batch=8)),
        solver=lambda g: pu.solvers.sgd(g, lr=0.05, momentum=0.9, weight_decay=1e-3),
        clip=0.5,
        devices="cpu:0-1",
        scheme=Scheme.parse(f"{scheme},staleness={staleness}"),
    )
    agree(trained(step), alone)


@pytest.mark.parametrize("staleness", [1, 2])
def test_the_bits_are_the_same_however_ops_interleave(staleness: int) -> None:
    step = floating(replicate(accumulate(lenet(2), 2, chained=False), "cpu:0-2"))
    first = trained(delay(step, staleness), steps=8)
    for _ in range(3):
        same_bits(trained(delay(step, staleness), steps=8), first)


def test_a_run_that_was_saved_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    step, data = delay(mlp(), 2), images()
    with pu.Run(step, data=data, seed=1) as run:
        losses = [result.loss for result in run.steps(4)]
        run.save(tmp_path)
        losses += [result.loss for result in run.steps(4)]
        expected = run.states()
    with pu.Run(step, data=data, seed=5) as run:
        assert run.load(tmp_path) == 4
        assert [result.loss for result in run.steps(4)] == losses[4:]
        found = run.states()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_checkpoints_go_from_staleness_to_none_and_back(tmp_path: Path) -> None:
    late, data = delay(mlp(), 1), images()
    with pu.Run(late, data=data, seed=1) as run:
        assert len(list(run.steps(3))) == 3
        run.save(tmp_path / "late")
        newest = run.states()["fc1/weight"]
    with pu.Run(mlp(), data=data) as run:
        run.load(tmp_path / "late")
        assert torch.equal(run.states()["fc1/weight"], newest)
        run.save(tmp_path / "newest")
    with pu.Run(late, data=data) as run:
        run.load(tmp_path / "newest")
        assert torch.equal(run.states()["late1/fc1/weight"], newest)


def test_values_that_are_set_are_those_of_earlier_iterations_too() -> None:
    with pu.Run(delay(mlp(), 1), data=images()) as run:
        run.set_states({"fc1/bias": torch.full((256,), 0.5, dtype=torch.float64)})
        assert run.states()["late1/fc1/bias"].unique().tolist() == [0.5]


def test_what_is_measured_has_the_newest_parameters() -> None:
    data = images()
    with pu.Run(delay(mlp(), 1), data=pu.data.DataSet("both", data.train, data.train)) as run:
        assert len(list(run.steps(2))) == 2
        measured = run.evaluate(pu.evaluation(net(12)))
        newest = run.states()
    with pu.Run(mlp(), data=pu.data.DataSet("both", data.train, data.train)) as run:
        run.set_states({n: v for n, v in newest.items() if n in run.graph.states})
        assert run.evaluate(pu.evaluation(net(12))) == measured


def test_steps_that_cannot_be_delayed_are_refused_by_name() -> None:
    with pytest.raises(GraphError, match="the step has no solver"):
        delay(pu.backward(net(4)), 1)
    with pytest.raises(ConfigError, match="staleness"):
        delay(mlp(), 0)
    with pytest.raises(ConfigError, match="found: devices of several hosts"):
        delay(replicate(mlp(4), "host0-1:cpu:0"), 1)
    cut = pu.solvers.sgd(pu.backward(shard(net(4), "cpu:0-1")), lr=0.1)
    with pytest.raises(ConfigError, match="found: layers that are cut over devices"):
        delay(cut, 1)
    with pytest.raises(ConfigError, match="workers, whose reads are stale anyway"):
        delay(serve(mlp(4), "cpu:0-1", "ssp"), 1)
    with pytest.raises(ConfigError, match="already read late"):
        delay(delay(mlp(4), 1), 1)
    with pytest.raises(ConfigError, match="staleness"):
        Scheme.parse("data=2,staleness=any")


def test_a_scheme_tells_its_staleness() -> None:
    assert str(Scheme.parse("data=2,staleness=1")) == "data=2,staleness=1"
    assert Scheme.parse("workers=2,asynchronous=ssp,staleness=1").staleness == 0


def test_a_pipeline_is_cut_as_it_is_without_delay() -> None:
    step = pipeline(mlp(4), devices="cpu:0-1", micro=2)
    late = delay(step, 1)
    where = {op.name: op.location for op in step.ops.values()}
    assert all(late.ops[name].location == location for name, location in where.items())
