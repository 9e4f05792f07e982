"""Every solver against `torch.optim`: the same numbers after the same training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import optim

from purine.analysis.infer import check
from purine.autodiff import backward
from purine.errors import ConfigError, GraphError
from purine.graph import Builder, Location, to_text
from purine.kinds import Net, inner_product, softmax_loss
from purine.solvers import (
    SOLVERS,
    Cosine,
    Exp,
    MultiStep,
    Step,
    adadelta,
    adagrad,
    adam,
    adamw,
    lars,
    rmsprop,
    sgd,
)
from tests.reference import following, run, start
from tests.solvers.small import (
    NAMES,
    assert_same,
    batches,
    small_net,
    train,
    train_torch,
    with_multipliers,
)

CASES = {
    "sgd": (lambda g: sgd(g, lr=0.3), lambda p: optim.SGD(p, lr=0.3)),
    "sgd_decay": (
        lambda g: sgd(g, lr=0.3, weight_decay=0.01),
        lambda p: optim.SGD(p, lr=0.3, weight_decay=0.01),
    ),
    "momentum": (
        lambda g: sgd(g, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda g: sgd(g, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": (
        lambda g: adagrad(g, weight_decay=0.01),
        lambda p: optim.Adagrad(p, weight_decay=0.01),
    ),
    "rmsprop": (
        lambda g: rmsprop(g, alpha=0.9, weight_decay=0.01),
        lambda p: optim.RMSprop(p, alpha=0.9, weight_decay=0.01),
    ),
    "adadelta": (
        lambda g: adadelta(g, weight_decay=0.01),
        lambda p: optim.Adadelta(p, weight_decay=0.01),
    ),
    "adam": (lambda g: adam(g), lambda p: optim.Adam(p)),
    "adam_decay": (
        lambda g: adam(g, lr=0.01, betas=(0.8, 0.95), weight_decay=0.01),
        lambda p: optim.Adam(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.01),
    ),
    "adamw": (lambda g: adamw(g, lr=0.01), lambda p: optim.AdamW(p, lr=0.01)),
}


@pytest.mark.parametrize("case", CASES)
def test_solver_gives_the_numbers_of_torch(case):
    attach, make = CASES[case]
    step = check(attach(backward(small_net())))
    states, _ = train(step)
    assert_same(states, train_torch(step, make))


def test_defaults_are_those_of_torch():
    made = {
        "adadelta": optim.Adadelta,
        "adagrad": optim.Adagrad,
        "adam": optim.Adam,
        "adamw": optim.AdamW,
        "rmsprop": optim.RMSprop,
    }
    for name, optimizer in made.items():
        step = SOLVERS[name](backward(small_net()))
        states, _ = train(step)
        assert_same(states, train_torch(step, optimizer))


@pytest.mark.parametrize(
    ("rate", "schedule"),
    [
        (Step(0.2, step=6, gamma=0.5), lambda o: optim.lr_scheduler.StepLR(o, 6, 0.5)),
        (MultiStep(0.2, steps=(4, 9)), lambda o: optim.lr_scheduler.MultiStepLR(o, [4, 9])),
        (Exp(0.2, gamma=0.9), lambda o: optim.lr_scheduler.ExponentialLR(o, 0.9)),
        (
            Cosine(0.2, max_iterations=20, floor=0.01),
            lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 20, 0.01),
        ),
    ],
    ids=["step", "multistep", "exp", "cosine"],
)
def test_a_policy_sets_the_rate_of_each_iteration(rate, schedule):
    step = check(sgd(backward(small_net()), lr=rate, momentum=0.9))
    states, reports = train(step)
    make = lambda p: optim.SGD(p, lr=0.2, momentum=0.9)  # noqa: E731
    assert_same(states, train_torch(step, make, schedule=schedule))
    assert reports[0]["lr"].item() == pytest.approx(0.2)
    assert reports[-1]["lr"].item() < 0.2


@pytest.mark.parametrize("solver", ["sgd", "adamw"])
def test_multipliers_scale_rate_and_decay_of_one_parameter(solver):
    multipliers = {"fc1/bias": (2.0, 0.0), "fc2/weight": (0.5, 3.0)}
    net = with_multipliers(small_net(), multipliers)
    step = check(SOLVERS[solver](backward(net), lr=0.1, weight_decay=0.02))
    assert step.ops["update/fc1/weight"].attributes.keys().isdisjoint({"lr_mult"})
    assert step.ops["update/fc1/bias"].attributes["lr_mult"] == 2.0
    states, _ = train(step)

    def make(leaves):
        groups = []
        for name, leaf in zip(NAMES, leaves, strict=True):
            lr, decay = multipliers.get(name, (1.0, 1.0))
            groups.append({"params": [leaf], "lr": 0.1 * lr, "weight_decay": 0.02 * decay})
        return optim.SGD(groups) if solver == "sgd" else optim.AdamW(groups)

    assert_same(states, train_torch(step, make))


def test_a_parameter_with_rate_zero_keeps_its_value():
    net = with_multipliers(small_net(), {"fc1/weight": (0.0, 1.0)})
    step = check(sgd(backward(net)))
    assert "update/fc1/weight" not in step.ops
    assert step.states["fc1/weight"].next == "fc1/weight"


def test_lars_follows_its_formula():
    step = check(lars(backward(small_net()), lr=2.0, momentum=0.9, eta=0.02, weight_decay=0.01))
    states = start(step, seed=3)
    weights = {name: states[name].clone() for name in NAMES}
    velocity = {name: torch.zeros_like(weights[name]) for name in NAMES}
    for data, label in batches():
        values = run(step, {"data": data, "label": label}, states)
        states = following(step, values)
        for name, weight in weights.items():
            gradient = values[f"grad/{name}"]
            length, slope = weight.norm(), gradient.norm()
            ratio = 0.02 * length / (slope + 0.01 * length + 1e-8) if length > 0 else 1.0
            velocity[name] = 0.9 * velocity[name] + ratio * (gradient + 0.01 * weight)
            weights[name] = weight - 2.0 * velocity[name]
    assert_same(states, weights)


def test_nodes_take_the_location_of_the_graph():
    place = Location(device="cpu:1")
    graph = backward(small_net())
    builder = Builder(graph)
    builder.blobs = {name: replace(blob, location=place) for name, blob in graph.blobs.items()}
    builder.ops = {name: replace(op, location=place) for name, op in graph.ops.items()}
    step = check(adam(builder.graph()))
    assert {blob.location for blob in step.blobs.values()} == {place}
    assert {op.location for op in step.ops.values()} == {place}


def test_text_of_a_small_graph():
    net = Net()
    x, label = net.input("x", (2, 3)), net.input("label", (2,), "int64")
    net.output(softmax_loss(inner_product(x, 4, bias=False, name="fc"), label, name="loss"))
    step = sgd(backward(net.graph()), lr=0.1, momentum=0.9, weight_decay=0.0005)
    added = [line for line in to_text(step).splitlines() if "grad/" not in line.split("=")[0]]
    wanted = ("lr = ", "fc/weight/next", "state", "output", "iteration/next")
    assert [line for line in added if line.startswith(wanted)] == [
        "iteration/next = iteration/add: aten.add.Scalar(iteration, other=1) lane io"
        "    # int64 scalar",
        "lr = lr: FixedRate(iteration, lr=0.1)    # float64 scalar",
        "fc/weight/next, momentum/fc/weight/next = update/fc/weight: MomentumUpdate(fc/weight, "
        "grad/fc/weight, momentum/fc/weight, lr, momentum=0.9, weight_decay=0.0005)"
        "    # float32 4x3, float32 4x3",
        "state fc/weight -> fc/weight/next (trainable, xavier)    # float32 4x3",
        "state seed -> seed (constant(value=0))    # int64 scalar",
        "state iteration -> iteration/next (constant)    # int64 scalar",
        "state momentum/fc/weight -> momentum/fc/weight/next (constant)    # float32 4x3",
        "output loss",
        "output lr",
    ]


def test_a_graph_without_gradients_is_refused():
    with pytest.raises(GraphError, match="has no gradients") as caught:
        sgd(small_net())
    assert "run backward first" in str(caught.value)


def test_a_second_solver_is_refused():
    with pytest.raises(GraphError, match="'fc1/weight' is updated already"):
        adam(sgd(backward(small_net())))


@pytest.mark.parametrize(
    ("solver", "options", "what"),
    [
        (sgd, {"lr": 0.0}, "lr is 0.0"),
        (sgd, {"lr": float("nan")}, "lr is nan"),
        (sgd, {"lr": "a"}, "lr is 'a'"),
        (sgd, {"lr": None}, "lr is None"),
        (sgd, {"momentum": "a"}, "momentum is 'a'"),
        (sgd, {"weight_decay": None}, "weight_decay is None"),
        (adam, {"betas": 0.9}, "betas is 0.9"),
        (adam, {"betas": ("a", 0.9)}, r"betas is \('a', 0.9\)\n  expected: a list of 2 numbers"),
        (sgd, {"momentum": 1.0}, "momentum is 1.0"),
        (sgd, {"nesterov": True}, "nesterov needs momentum"),
        (sgd, {"weight_decay": -0.1}, "weight_decay is -0.1"),
        (adam, {"betas": (0.9, 1.0)}, "the second of betas is 1.0"),
        (adamw, {"eps": -1.0}, "eps is -1.0"),
        (rmsprop, {"alpha": 1.5}, "alpha is 1.5"),
        (adadelta, {"rho": -0.5}, "rho is -0.5"),
        (lars, {"eta": 0.0}, "eta is 0.0"),
    ],
)
def test_options_out_of_range_are_refused(solver, options, what):
    with pytest.raises(ConfigError, match=what) as caught:
        solver(backward(small_net()), **options)
    assert caught.value.remedy
