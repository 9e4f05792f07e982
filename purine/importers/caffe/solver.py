"""Caffe's solver definitions, and the same training as transforms of a graph.

Numbers are Caffe's: the rate is inside the momentum, gradients are clipped by their sum over
`iter_size` batches, and decay is added after clipping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from purine import solvers
from purine.arguments import checked
from purine.autodiff import gradient_of
from purine.graph import Builder, Graph, Origin
from purine.importers.caffe.schema import Node
from purine.parallel.accumulate import accumulate
from purine.solvers import Fixed, Rate
from purine.solvers.attach import parameters

__all__ = ["CaffeSolver", "apply_solver", "solver_of"]

_TYPES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")
_POLICIES = ("fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid")
_PLAIN = ("momentum", "momentum2", "rms_decay", "delta", "weight_decay", "max_iter")
_INTERVALS = ("test_interval", "display", "snapshot")  # 0 switches off
_BOUNDS = (
    (("momentum", "momentum2", "rms_decay"), 1.0, "at least 0 and below 1"),
    (("weight_decay", "delta", "base_lr", "max_iter", *_INTERVALS), math.inf, "0 or more"),
)
"""Settings that are 0 or more, what they have to be below, and both in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaffeSolver:
    """What a solver definition asks for, and the function that adds its updates to a graph.

    >>> from purine.autodiff import backward
    >>> from purine.zoo import mlp
    >>> solver = CaffeSolver(type="SGD", rate=Fixed(0.01), momentum=0.9)
    >>> solver(backward(mlp(batch=8))).states["fc1/weight"].next
    'fc1/weight/next'
    """

    type: str
    rate: Rate
    momentum: float = 0.0
    momentum2: float = 0.999
    rms_decay: float = 0.99
    delta: float = 1e-8
    weight_decay: float = 0.0
    regularization: str = "L2"
    clip_gradients: float | None = None
    iter_size: int = 1
    max_iter: int | None = None
    test_iter: tuple[int, ...] = ()
    test_interval: int | None = None
    display: int | None = None
    snapshot: int | None = None
    random_seed: int | None = None
    net: str | None = None
    test_net: str | None = None

    @checked
    def __call__(self, graph: Graph) -> Graph:
        """The graph of a net and its gradients with the updates of this solver."""
        return apply_solver(graph, self)


def solver_of(node: Node) -> CaffeSolver:
    """The settings of a solver message, checked."""
    type: str = node.get("type", "SGD")
    if "solver_type" in node:
        type = dict(zip(map(str.upper, _TYPES), _TYPES, strict=True))[node.get("solver_type")]
    _one_of(node, "type", type, _TYPES)
    regularization: str = node.get("regularization_type", "L2")
    _one_of(node, "regularization_type", regularization, ("L1", "L2"))
    momentum: float = node.get("momentum", 0.0)
    if momentum and type in ("AdaGrad", "RMSProp"):
        raise node.error(f"{type} has no momentum", "momentum", "momentum 0", str(momentum))
    for settings, most, expected in _BOUNDS:
        for name in settings:
            if not 0 <= node.get(name, 0) < most:
                raise node.wrong(name, node.get(name), expected)
    seed: int | None = node.get("random_seed")
    clip: float = node.get("clip_gradients", -1.0)
    if clip == 0 or clip != clip:
        raise node.wrong("clip_gradients", clip, "above 0, or negative for none")
    given = {name: node.get(name) for name in _PLAIN if name in node}
    given |= {name: node.get(name) for name in _INTERVALS if node.get(name)}
    return CaffeSolver(
        type=type,
        rate=_rate(node),
        regularization=regularization,
        clip_gradients=clip if clip > 0 else None,
        iter_size=node.positive("iter_size", 1),
        test_iter=tuple(node.all("test_iter")),
        random_seed=None if seed is None or seed < 0 else seed,
        net=node.get("train_net", node.get("net")),
        test_net=(*node.all("test_net"), None)[0],
        **given,
    )


def apply_solver(graph: Graph, solver: CaffeSolver) -> Graph:
    """The graph of a net and its gradients with the updates that a Caffe solver makes."""
    graph = accumulate(graph, solver.iter_size, together=False)
    if solver.clip_gradients is not None:
        graph = _clipped(graph, solver.clip_gradients / solver.iter_size)
    decay = solver.weight_decay
    if decay and solver.regularization == "L1":
        graph, decay = _with_l1(graph, decay), 0.0
    rate, momentum = solver.rate, solver.momentum
    if solver.type in ("SGD", "Nesterov"):
        sgd = partial(solvers.sgd, graph, lr=rate, momentum=momentum, weight_decay=decay)
        nesterov = solver.type == "Nesterov" and momentum > 0
        return sgd(nesterov=nesterov, lr_in_momentum=momentum > 0)
    eps = solver.delta
    if solver.type == "AdaGrad":
        return solvers.adagrad(graph, lr=rate, eps=eps, weight_decay=decay)
    if solver.type == "RMSProp":
        return solvers.rmsprop(graph, lr=rate, alpha=solver.rms_decay, eps=eps, weight_decay=decay)
    if solver.type == "AdaDelta":
        return solvers.adadelta(graph, lr=rate, rho=momentum, eps=eps, weight_decay=decay)
    betas = (momentum, solver.momentum2)
    return solvers.adam(graph, lr=rate, betas=betas, eps=eps, correct_eps=True, weight_decay=decay)


def _rate(node: Node) -> Rate:
    policy: str = node.get("lr_policy", "fixed")
    _one_of(node, "lr_policy", policy, _POLICIES)
    lr = _above_zero(node, "base_lr")
    if policy == "fixed":
        return Fixed(lr)
    if policy == "poly":
        power = _above_zero(node, "power")
        return solvers.Poly(lr, max_iterations=node.positive("max_iter"), power=power)
    gamma = _needed(node, "gamma")
    if policy == "sigmoid":
        return solvers.Sigmoid(lr, gamma=gamma, step=node.positive("stepsize"))
    if policy == "inv":
        for name in ("gamma", "power"):
            if _needed(node, name) < 0:
                raise node.wrong(name, node.get(name), "0 or more")
        return solvers.Inv(lr, gamma=gamma, power=node.get("power"))
    gamma = _above_zero(node, "gamma")
    if policy == "exp":
        return solvers.Exp(lr, gamma=gamma)
    if policy == "step":
        return solvers.Step(lr, step=node.positive("stepsize"), gamma=gamma)
    steps = node.all("stepvalue")
    if not steps or steps != sorted(set(steps)) or steps[0] < 1:
        raise node.wrong("stepvalue", steps, "one or more iterations, each later than the last")
    return solvers.MultiStep(lr, steps=tuple(steps), gamma=gamma)


def _clipped(graph: Graph, max_norm: float) -> Graph:
    builder = Builder(solvers.clip_by_norm(graph, max_norm))
    for op in list(builder.ops.values()):
        if op.kind == "ClipGradient":
            builder.ops[op.name] = replace(op, attributes={**op.attributes, "eps": 0.0})
    return builder.graph()


def _with_l1(graph: Graph, decay: float) -> Graph:
    """The graph with `decay` times the sign of each weight added to its gradient."""
    builder = Builder(graph)
    for name in parameters(graph):
        target, factor = gradient_of(name), decay * graph.states[name].decay_mult
        if not factor:
            continue
        weight, plain = graph.blobs[name], f"{target}/without_decay"
        builder.add(replace(builder.blobs[target], name=plain))
        for op in list(builder.ops.values()):
            if target in (*op.inputs, *op.outputs):
                builder.ops[op.name] = op.renamed({target: plain})
        sign = builder.blob(f"{target}/sign", weight.shape, weight.dtype, weight.location)
        add = partial(builder.op, location=weight.location, origin=Origin(name, "update"))
        add(sign, "aten.sign", [name], [sign])
        add(f"{target}/decay", "aten.add.Tensor", [plain, sign], [target], {"alpha": factor})
    return builder.graph()


def _one_of(node: Node, name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise node.wrong(name, repr(value), "one of " + ", ".join(known))


def _needed(node: Node, name: str) -> float:
    value = node.get(name)
    if value is None:
        what, policy = f"{name} is missing", node.get("lr_policy", "fixed")
        raise node.error(what, "lr_policy", f"{name} for policy {policy!r}", "none", f"add {name}")
    return float(value)


def _above_zero(node: Node, name: str) -> float:
    value = _needed(node, name)
    if not 0 < value < math.inf:
        raise node.wrong(name, node.get(name), "above 0")
    return value
