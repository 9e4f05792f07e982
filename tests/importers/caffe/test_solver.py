"""Solver definitions, and training with them against loops written by Caffe's rules."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import purine as pu
from purine.analysis.infer import check
from purine.autodiff import backward
from purine.errors import FormatError
from purine.importers.caffe import apply_solver
from purine.importers.caffe.schema import read
from purine.importers.caffe.solver import CaffeSolver, solver_of
from purine.solvers import Exp, Fixed, Inv, MultiStep, Poly, Sigmoid, Step
from tests.reference import following, run, start
from tests.solvers.small import NAMES, assert_same, batches, small_net, with_multipliers

MULTIPLIERS = {"fc1/bias": (2.0, 0.0), "fc2/weight": (0.5, 3.0)}
COUNT = 12


def parsed(text: str) -> CaffeSolver:
    return solver_of(read(text, "SolverParameter", file="solver.prototxt"))


def update(solver, rate, step, w, g, memory):
    """Caffe's update of one parameter: its new value; `memory` holds the solver's history."""
    m, delta, kind = solver.momentum, solver.delta, solver.type
    h = memory.get("h", torch.zeros_like(w))
    if kind in ("SGD", "Nesterov"):
        memory["h"] = m * h + rate * g
        return w - (memory["h"] if kind == "SGD" else (1 + m) * memory["h"] - m * h)
    if kind == "AdaGrad":
        memory["h"] = h + g * g
        return w - rate * g / (memory["h"].sqrt() + delta)
    if kind == "RMSProp":
        memory["h"] = solver.rms_decay * h + (1 - solver.rms_decay) * g * g
        return w - rate * g / (memory["h"].sqrt() + delta)
    second = memory.get("second", torch.zeros_like(w))
    if kind == "AdaDelta":
        memory["h"] = m * h + (1 - m) * g * g
        moved = g * ((second + delta) / (memory["h"] + delta)).sqrt()
        memory["second"] = m * second + (1 - m) * moved * moved
        return w - rate * moved
    m2 = solver.momentum2
    memory["h"] = m * h + (1 - m) * g
    memory["second"] = m2 * second + (1 - m2) * g * g
    correction = math.sqrt(1 - m2 ** (step + 1)) / (1 - m ** (step + 1))
    return w - rate * correction * memory["h"] / (memory["second"].sqrt() + delta)


def train_by_hand(graph, solver, rate_at):
    first = start(graph, seed=3)
    weights = {name: first[name].clone() for name in NAMES}
    memories = {name: {} for name in NAMES}
    samples = list(batches(count=COUNT * solver.iter_size))
    for step in range(COUNT):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        part = samples[step * solver.iter_size : (step + 1) * solver.iter_size]
        for data, label in part:
            hidden = torch.tanh(F.linear(data, leaves["fc1/weight"], leaves["fc1/bias"]))
            scores = F.linear(hidden, leaves["fc2/weight"], leaves["fc2/bias"])
            F.cross_entropy(scores, label).backward()
        gradients = {name: leaf.grad for name, leaf in leaves.items()}
        if solver.clip_gradients:
            norm = math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
            if norm > solver.clip_gradients:
                gradients = {k: g * solver.clip_gradients / norm for k, g in gradients.items()}
        for name, gradient in gradients.items():
            lr_mult, decay_mult = MULTIPLIERS.get(name, (1.0, 1.0))
            decay, weight = solver.weight_decay * decay_mult, weights[name]
            penalty = weight if solver.regularization == "L2" else weight.sign()
            g = gradient / solver.iter_size + decay * penalty
            rate = rate_at(step) * lr_mult
            weights[name] = update(solver, rate, step, weight, g, memories[name])
    return weights


def train(graph, iter_size):
    states = start(graph, seed=3)
    samples = list(batches(count=COUNT * iter_size))
    for step in range(COUNT):
        feeds = {}
        for part in range(iter_size):
            prefix = f"micro{part}/" if iter_size > 1 else ""
            data, label = samples[step * iter_size + part]
            feeds |= {f"{prefix}data": data, f"{prefix}label": label}
        states = following(graph, run(graph, feeds, states))
    return states


@pytest.mark.parametrize(
    "text",
    [
        'type: "SGD" momentum: 0.9 weight_decay: 0.01',
        "weight_decay: 0.01 regularization_type: 'L1' momentum: 0.5",
        'type: "Nesterov" momentum: 0.9 weight_decay: 0.01',
        'type: "AdaGrad" weight_decay: 0.01 delta: 0.1',
        'type: "RMSProp" rms_decay: 0.9 delta: 0.1',
        'type: "AdaDelta" momentum: 0.9 delta: 1e-3',
        'type: "Adam" momentum: 0.9 momentum2: 0.99 delta: 0.1 weight_decay: 0.01',
        "solver_type: NESTEROV momentum: 0.5",
        'type: "SGD" momentum: 0.9 clip_gradients: 0.3 weight_decay: 0.1',
        'type: "SGD" momentum: 0.9 iter_size: 2 weight_decay: 0.1',
        'type: "Adam" momentum: 0.9 iter_size: 2 clip_gradients: 0.3',
    ],
)
def test_training_has_caffes_numbers_when_the_rate_falls(text):
    solver = parsed(f"base_lr: 0.3 lr_policy: 'step' stepsize: 3 gamma: 0.5 {text}")
    net = with_multipliers(small_net(), MULTIPLIERS)
    graph = check(apply_solver(backward(net), solver))
    expected = train_by_hand(graph, solver, lambda step: 0.3 * 0.5 ** (step // 3))
    assert_same(train(graph, solver.iter_size), expected)


@pytest.mark.parametrize(
    "text",
    [
        "momentum: 0.9 iter_size: 2",
        "momentum: 0.9 iter_size: 2 clip_gradients: 0.2 weight_decay: 0.1",
        "clip_gradients: 0.2",
        "weight_decay: 0.1 regularization_type: 'L1'",
    ],
)
def test_a_solver_file_is_a_function_for_one_device_and_for_several(text, tmp_path):
    path = tmp_path / "solver.prototxt"
    path.write_text(f"base_lr: 0.5 {text}")
    solver = pu.from_caffe_solver(path)
    net = pu.zoo.mlp(8, image=(1, 1, 8), classes=3, hidden=())
    rows = torch.randn(40, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    data, found = (rows, torch.arange(40) % 3), []
    one = solver(backward(net))
    assert one == apply_solver(backward(net), solver)
    two = pu.compose(net, solver=solver, devices="cpu:0-1", data=2, micro=2)
    for step in (one, two):
        with pu.Run(step, data=data, share_cores=True) as training:
            found.append([result.loss for result in training.steps(5)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("", Fixed(0.1)),
        ("lr_policy: 'fixed'", Fixed(0.1)),
        ("lr_policy: 'step' gamma: 0.5 stepsize: 10", Step(0.1, step=10, gamma=0.5)),
        (
            "lr_policy: 'multistep' gamma: 0.5 stepvalue: 10 stepvalue: 20",
            MultiStep(0.1, steps=(10, 20), gamma=0.5),
        ),
        ("lr_policy: 'exp' gamma: 0.9", Exp(0.1, gamma=0.9)),
        ("lr_policy: 'inv' gamma: 1e-4 power: 0.75", Inv(0.1, gamma=1e-4, power=0.75)),
        ("lr_policy: 'poly' power: 2 max_iter: 50", Poly(0.1, max_iterations=50, power=2)),
        ("lr_policy: 'sigmoid' gamma: -0.1 stepsize: 5", Sigmoid(0.1, gamma=-0.1, step=5)),
    ],
)
def test_policies(text, rate):
    assert parsed(f"base_lr: 0.1 {text}").rate == rate


def test_other_settings():
    solver = parsed(
        "base_lr: 1 max_iter: 7 test_interval: 3 test_iter: 2 test_iter: 4 snapshot: 5 "
        "random_seed: 9 net: 'a.prototxt' solver_mode: GPU clip_gradients: -1"
    )
    assert (solver.max_iter, solver.test_interval, solver.test_iter) == (7, 3, (2, 4))
    assert (solver.snapshot, solver.random_seed, solver.net) == (5, 9, "a.prototxt")
    assert solver.clip_gradients is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("momentum: 0.9", "base_lr is missing"),
        ("base_lr: 0", "base_lr is 0"),
        ("base_lr: 1 type: 'Adamm'", "type is 'Adamm'"),
        ("base_lr: 1 lr_policy: 'stepp'", "lr_policy is 'stepp'"),
        ("base_lr: 1 lr_policy: 'step' gamma: 1", "stepsize is missing"),
        ("base_lr: 1 lr_policy: 'exp'", "gamma is missing"),
        ("base_lr: 1 lr_policy: 'multistep' gamma: 1 stepvalue: [2, 1]", "stepvalue is [2, 1]"),
        ("base_lr: 1 momentum: 1", "momentum is 1"),
        ("base_lr: 1 momentum: 0.9 type: 'AdaGrad'", "AdaGrad has no momentum"),
        ("base_lr: 1 iter_size: 0", "iter_size is 0"),
        ("base_lr: 1 regularization_type: 'L3'", "regularization_type is 'L3'"),
        ("base_lr: 1 clip_gradients: 0", "clip_gradients is 0"),
    ],
)
def test_mistakes(text, what):
    with pytest.raises(FormatError) as caught:
        parsed("\n" + text)
    assert caught.value.what.startswith(what)
    assert str(caught.value.where).startswith("solver.prototxt:")
