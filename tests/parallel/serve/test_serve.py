"""The graph of workers: what it is where nothing is stale, what it shares, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import purine as pu
from purine.autodiff import reported_losses
from purine.errors import ConfigError, GraphError
from purine.graph import Graph, from_yaml, to_yaml
from purine.graph.names import restored
from purine.parallel import Scheme, gather_values, pipeline, replicate, serve, shard
from purine.parallel.serve import RULES, Asynchronous
from purine.placement.values import shard_values
from tests.parallel.nets import float64, images, lenet
from tests.parallel.serve.serial import Serial

SCHEMES = tuple(RULES)
IMAGES = images()


def plain(batch: int = 4, **options: float) -> Graph:
    return pu.solvers.sgd(pu.backward(float64(pu.zoo.mlp(batch=batch))), lr=0.1, **options)


def normalised() -> Graph:
    """A step with batch norm."""
    net = pu.kinds.Net()
    x, label = net.data((4, 1, 6, 6))
    hidden = pu.kinds.batch_norm(pu.kinds.conv(x, 2, kernel=3, name="conv"), name="bn")
    net.output(pu.kinds.softmax_loss(pu.kinds.inner_product(hidden, 10, name="fc"), label))
    return pu.solvers.sgd(pu.backward(float64(net.graph())), lr=0.1)


@pytest.mark.parametrize("scheme", ["ssp", "downpour", "hogwild"])
def test_nothing_stale_is_the_graph_of_replicas(scheme: str) -> None:
    assert serve(lenet(4), "cpu:0-3", scheme, staleness=0) == replicate(lenet(4), "cpu:0-3")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("solver", [pu.solvers.sgd, pu.solvers.adam, pu.solvers.lars])
def test_every_scheme_goes_with_every_solver(scheme: str, solver: Callable[..., Graph]) -> None:
    step = solver(pu.solvers.clip_by_norm(pu.backward(pu.zoo.mlp(batch=4)), 1.0), lr=0.01)
    graph = serve(step, "cpu:0-2", scheme)
    assert {op.worker for op in graph.ops.values()} == {0, 1, 2}
    assert from_yaml(to_yaml(graph)) == graph
    again = restored(from_yaml(to_yaml(graph)))
    for name, op in graph.ops.items():
        if op.origin is not None and op.origin.role == "backward":
            assert again.ops[name].origin.role == "backward"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_workers_of_several_devices(scheme: str) -> None:
    inner = {
        "replicas": replicate(lenet(3), "cpu:0-1"),
        "pipeline": pipeline(lenet(3), devices="cpu:0-1", micro=2, cut=["fc1"]),
    }
    for step in inner.values():
        graph = serve(step, "cpu:0-3", scheme)
        assert len(pu.parallel.devices_of(graph)) == 4
        run = Serial(graph, images())
        losses = [run.run([worker])[0][f"worker{worker}/loss"] for worker in (0, 1, 1, 0)]
        assert all(torch.isfinite(loss) for loss in losses)


def test_a_worker_of_replicas_trains_as_one_with_the_whole_batch() -> None:
    runs = [
        Serial(serve(replicate(lenet(3), "cpu:0-1"), "cpu:0-3", "ssp"), images()),
        Serial(serve(lenet(6), "cpu:0-1", "ssp"), images()),
    ]
    for run in runs:
        run.run((0, 1, 1, 0))
    for name in ("conv1/weight", "fc2/bias", "momentum/fc1/weight"):
        torch.testing.assert_close(runs[0].states[name], runs[1].states[name])


def test_ssp_shares_parameters_and_hogwild_nothing_else() -> None:
    step = plain(momentum=0.9)
    kinds = {"ssp": {"momentum/fc1/weight", "fc1/weight"}, "hogwild": {"fc1/weight"}}
    for scheme, expected in kinds.items():
        shared = {state.shared for state in serve(step, "cpu:0-1", scheme).states.values()}
        assert {name for name in shared if "fc1/weight" in name} == expected


def test_the_bound_is_that_of_the_parameters() -> None:
    states = serve(plain(), "cpu:0-1", "ssp", staleness=5).states
    assert states["worker1/fc1/weight"].staleness == 5
    states = serve(plain(), "cpu:0-1", "downpour").states
    assert states["worker1/fc1/weight"].staleness is None


def test_losses_are_those_of_each_worker() -> None:
    graph = serve(plain(), "cpu:0-1", "ssp")
    assert reported_losses(graph) == ("worker0/loss", "worker1/loss")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_parameters_are_measured_and_start_as_those_of_the_step(scheme: str) -> None:
    step = plain(momentum=0.9)
    graph = serve(step, "cpu:0-2", scheme)
    whole = Serial(step, IMAGES).states
    values = shard_values(graph, {name: whole[name] for name in whole if name != "iteration"})
    values = {name: values[name] for name in graph.states if name in values}
    gathered = gather_values(graph, values)
    for name in ("fc1/weight", "fc2/bias"):
        torch.testing.assert_close(gathered[name], whole[name])
        drawn = Serial(graph, IMAGES).states
        own = [key for key in drawn if key == name or key.endswith(f"/{name}")]
        starts = [key for key in own if "momentum" not in key and "mail" not in key]
        assert starts
        assert all(torch.equal(drawn[key], whole[name]) for key in starts if "accr" not in key)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_running_statistics_are_the_workers_own_and_measured_as_their_mean(scheme: str) -> None:
    graph = serve(normalised(), "cpu:0-1", scheme)
    run = Serial(graph, images((1, 6, 6)))
    run.run((0, 1, 0))
    (name,) = (n for n in normalised().states if n.endswith("mean"))
    own = [run.states[f"worker{worker}/{name}"] for worker in (0, 1)]
    assert not torch.equal(*own)
    values = {state: run.states[run.key(state)] for state in graph.states}
    torch.testing.assert_close(gather_values(graph, values)[name], (own[0] + own[1]) / 2)


SOLVER = partial(pu.solvers.sgd, lr=0.1)


def test_compose_cuts_the_batch_for_workers() -> None:
    graph = pu.compose(
        pu.zoo.mlp(batch=12),
        solver=SOLVER,
        devices="cpu:0-3",
        workers=2,
        asynchronous="ssp",
        staleness=2,
        data=2,
    )
    assert graph.blobs["worker1/replica1/data"].shape == (3, 1, 28, 28)
    other = Scheme(workers=2, data=2, asynchronous=Asynchronous(scheme="ssp", staleness=2))
    same = pu.compose(pu.zoo.mlp(batch=12), solver=SOLVER, devices="cpu:0-3", scheme=other)
    assert same == graph


def test_compose_with_nothing_stale_is_data_parallel() -> None:
    net = pu.zoo.mlp(batch=12)
    settings = {"workers": 2, "asynchronous": "ssp", "staleness": 0, "data": 2}
    found = pu.compose(net, solver=SOLVER, devices="cpu:0-3", **settings)
    assert found == pu.compose(net, solver=SOLVER, devices="cpu:0-3", data=4)


@pytest.mark.parametrize(
    "text",
    [
        "workers=4,asynchronous=ssp,staleness=2,stale_rate=true",
        "workers=2,asynchronous=downpour,push=2,fetch=4,data=2",
        "workers=4,asynchronous=easgd,every=8,alpha=0.1,rates=steps",
        "workers=4,asynchronous=diloco,outer_lr=0.5,outer_momentum=0.0",
        "workers=4,asynchronous=gossip,partners=7",
    ],
)
def test_schemes_read_back(text: str) -> None:
    assert str(Scheme.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers=2", "there are workers without a scheme"),
        ("push=2", "push is given, and no asynchronous scheme"),
        ("asynchronous=spp", "did you mean 'ssp'"),
        ("asynchronous=ssp,push=2", "push is no setting of ssp"),
        ("asynchronous=ssp,staleness=-1", "0 or more, or any"),
        ("asynchronous=ssp,staleness=much", "0 or more, or any"),
        ("asynchronous=ssp,stalenes=2", "did you mean 'staleness'"),
        ("asynchronous=easgd,alpha=0", "above 0"),
        ("asynchronous=easgd,alpha=x", "alpha is 'x'"),
        ("asynchronous=easgd,every=0", "1 or more"),
        ("asynchronous=ssp,rates=batches", "tickets"),
        ("asynchronous=ssp,stale_rate=yes", "true or false"),
        ("asynchronous=ssp,model=2", "workers cannot train with model"),
        ("asynchronous=ssp,floating=true", "workers cannot train with floating"),
    ],
)
def test_settings_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheme.parse(text)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: serve(pu.backward(pu.zoo.mlp(batch=4)), "cpu:0-1"), GraphError, "no solver"),
        (lambda: serve(pu.zoo.mlp(batch=4), "cpu:0-1"), GraphError, "no gradients"),
        (lambda: serve(plain(), "cuda:0-1"), ConfigError, "cannot be on GPUs"),
        (lambda: serve(plain(), "host0-1:cpu:0"), ConfigError, "ssp does not go over hosts"),
        (lambda: serve(plain(), "cpu:0-1", "easgd", servers=1), ConfigError, "several hosts"),
        (lambda: serve(serve(plain(), "cpu:0-1"), "cpu:0-3"), GraphError, "workers already"),
        (lambda: serve(replicate(plain(), "cpu:0-1"), "cpu:0-2"), ConfigError, "multiple of 2"),
        (lambda: serve(_sharded(), "cpu:0-3"), ConfigError, "cut over devices"),
        (lambda: serve(_scaled(), "cpu:0-1"), ConfigError, "loss scale"),
        (lambda: serve(plain(), "cpu:0-1", "sps"), ConfigError, "did you mean 'ssp'"),
    ],
)
def test_steps_are_refused_by_name(
    make: Callable[[], Graph], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def _sharded() -> Graph:
    return SOLVER(pu.backward(shard(pu.zoo.mlp(batch=4), "cpu:0-1")))


def _scaled() -> Graph:
    return SOLVER(pu.backward(pu.optimize.mixed(pu.zoo.mlp(batch=4), "fp16")))
