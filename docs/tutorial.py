"""Purine in a hundred lines.

This file rebuilds the core of Purine in little more than a hundred statements, from the standard
library and torch's arithmetic. Read it from top to bottom, then run it. It fits a small network to
a curve twice, once serially and once as two replicas, and both give the same numbers.

    python docs/tutorial.py

Three sentences carry the whole system. A network is a graph, and a transformation of a network is a
function from graph to graph. Running is a state machine over a graph, driven by events: whatever is
ready runs, and nothing waits at a barrier. The state machine does not know what it drives: threads
here, CUDA streams or a virtual clock elsewhere.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import PriorityQueue

import torch
from torch import Tensor

# 1. Blobs, ops and graphs are values
#
# A blob describes data, an op describes a computation, and a graph holds both. None of them holds
# bytes or counters, so a graph can be stored, compared, printed and passed to any function. To keep
# the text short every op makes one blob, and both share one name. In Purine an op may make several,
# and nodes also have a location.


@dataclass(frozen=True)
class Blob:
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    name: str
    kind: str
    inputs: tuple[str, ...]
    settings: tuple[tuple[str, float], ...] = ()
    lane: str = "compute"


@dataclass(frozen=True)
class Graph:
    blobs: Mapping[str, Blob] = field(default_factory=dict)
    ops: Mapping[str, Op] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)


# A graph runs again and again. `states` carries values from one iteration to the next: what
# iteration i writes to blob `states[read]`, iteration i + 1 reads from blob `read`. Parameters,
# optimizer state and the iteration number are states.

# 2. A table of kinds
#
# A kind is a pure function over tensors. Shapes come from running it on tensors without bytes
# (torch's device "meta"), so a mistake is reported where the graph is written, not where it runs.
#
# Even reading data is a pure function, of the iteration number. Sample n is a number between -1 and
# 1; the golden ratio spreads the samples evenly. Part k of `parts` reads the k-th piece of the
# batch, so all parts together read the batch.

BATCH = 64


def samples(iteration: Tensor, part: int = 0, parts: int = 1) -> Tensor:
    size = BATCH // parts
    n = iteration * BATCH + part * size + torch.arange(size, device=iteration.device)
    return (2 * (n * 0.6180339887 % 1) - 1).unsqueeze(1)


KINDS: Mapping[str, Callable[..., Tensor]] = {
    "samples": samples,
    "wave": lambda x: torch.sin(3 * x),
    "linear": lambda x, weight, bias: x @ weight + bias,
    "tanh": torch.tanh,
    "error": lambda x, target: ((x - target) ** 2).mean(),
    "sum": lambda *parts: torch.stack(parts).sum(0),
    "mean": lambda *parts: torch.stack(parts).mean(0),
    "count": lambda iteration: iteration + 1,
    "one": lambda: torch.ones((), dtype=torch.float64),
    "times_transposed": lambda g, weight: g @ weight.T,
    "transposed_times": lambda x, g: x.T @ g,
    "sum_rows": lambda g: g.sum(0),
    "tanh_back": lambda g, y: g * (1 - y * y),
    "error_back": lambda g, x, target: g * 2 * (x - target) / len(x),
    "decay": lambda velocity, g, momentum: momentum * velocity + g,
    "descend": lambda weight, velocity, rate: weight - rate * velocity,
}


def add(
    graph: Graph, name: str, kind: str, *inputs: str, lane: str = "compute", **settings: float
) -> Graph:
    """The graph with one op more."""
    assert name not in graph.blobs, f"{name} has a producer already"
    empty = [torch.empty(graph.blobs[blob].shape, device="meta") for blob in inputs]
    blob = Blob(name, tuple(KINDS[kind](*empty, **settings).shape))
    op = Op(name, kind, inputs, tuple(settings.items()), lane)
    return replace(graph, blobs={**graph.blobs, name: blob}, ops={**graph.ops, name: op})


def state(graph: Graph, name: str, *shape: int) -> Graph:
    """The graph with one state more, which keeps its value until `carry` is called."""
    blobs = {**graph.blobs, name: Blob(name, shape)}
    return replace(graph, blobs=blobs, states={**graph.states, name: name})


def carry(graph: Graph, name: str, following: str) -> Graph:
    """The graph in which the next iteration reads blob `following` as state `name`."""
    return replace(graph, states={**graph.states, name: following})


# With these three functions a net reads from top to bottom. Ops that prefetch data have a lane of
# their own, `io`. Blob `hidden` has two readers, so its gradient is a sum (next section).


def wave_net(width: int = 16) -> Graph:
    """Two tanh layers, the second one with a shortcut around it, and a squared error."""
    graph = add(state(Graph(), "iteration"), "iteration/next", "count", "iteration", lane="io")
    graph = carry(graph, "iteration", "iteration/next")
    graph = add(graph, "x", "samples", "iteration", lane="io")
    graph = add(graph, "target", "wave", "x", lane="io")
    for layer, (rows, columns) in enumerate([(1, width), (width, width), (width, 1)], 1):
        graph = state(state(graph, f"weight{layer}", rows, columns), f"bias{layer}", columns)
    graph = add(graph, "linear1", "linear", "x", "weight1", "bias1")
    graph = add(graph, "hidden", "tanh", "linear1")
    graph = add(graph, "linear2", "linear", "hidden", "weight2", "bias2")
    graph = add(graph, "tanh2", "tanh", "linear2")
    graph = add(graph, "joined", "sum", "hidden", "tanh2")
    graph = add(graph, "y", "linear", "joined", "weight3", "bias3")
    return add(graph, "loss", "error", "y", "target")


# 3. Gradients are a reverse walk that adds ops
#
# For each input of a kind the table names the op that makes its gradient, and the inputs of that
# op: a number is that input of the forward op, `y` is its result and `g` the gradient of its
# result. (Purine traces torch's vector-Jacobian products instead. Its table has only what cannot be
# traced.)

GRADIENTS: Mapping[str, tuple[str, ...]] = {
    "linear": ("times_transposed g 1", "transposed_times 0 g", "sum_rows g"),
    "tanh": ("tanh_back g y",),
    "sum": ("sum g", "sum g"),
    "error": ("error_back g 0 1",),
}


def backward(graph: Graph, loss: str) -> Graph:
    """Forward and backward as one graph: the gradient of blob `w` is blob `grad/w`."""
    forward, parts = graph, {loss: ["one"]}
    graph = add(graph, "one", "one")
    # Blobs are in the order in which they were added, so every reader of a blob comes after it. In
    # reverse order, all parts of a gradient exist when their sum is added. Data has no rule in the
    # table, and so no gradient.
    for name in reversed(tuple(forward.blobs)):
        if name not in parts:
            continue
        gradient = f"grad/{name}"
        graph = add(graph, gradient, "sum", *parts[name])
        if name in forward.states:
            continue
        op = forward.ops[name]
        known = {"g": gradient, "y": name, **{str(i): blob for i, blob in enumerate(op.inputs)}}
        for blob, rule in zip(op.inputs, GRADIENTS[op.kind], strict=False):
            if blob in forward.states or forward.ops[blob].kind in GRADIENTS:
                kind, *takes = rule.split()
                part = f"{gradient}/to/{blob}"
                graph = add(graph, part, kind, *(known[item] for item in takes))
                parts.setdefault(blob, []).append(part)
    return graph


# 4. A solver is a function from graph to graph
#
# It adds optimizer state (a velocity for each parameter) and ops that make the next values. There
# is no optimizer object, and no `step()` to call.


def sgd(graph: Graph, *, rate: float, momentum: float) -> Graph:
    """The graph with an update of every state that has a gradient."""
    for name in [name for name in graph.states if f"grad/{name}" in graph.blobs]:
        velocity = f"velocity/{name}"
        next_velocity, next_value = f"{velocity}/next", f"{name}/next"
        graph = state(graph, velocity, *graph.blobs[name].shape)
        graph = add(graph, next_velocity, "decay", velocity, f"grad/{name}", momentum=momentum)
        graph = add(graph, next_value, "descend", name, next_velocity, rate=rate)
        graph = carry(carry(graph, velocity, next_velocity), name, next_value)
    return graph


# 5. So is data parallelism
#
# Each replica has its own copy of everything but the states, on its own lane and for its own part
# of the batch. The loss and the gradients are means over the replicas, under the names they had
# before, so the solver cannot tell the difference.


def replicate(graph: Graph, count: int) -> Graph:
    """Forward and backward on `count` parts of each batch, with the mean of their gradients."""
    shared = {*graph.states, *graph.states.values()}
    result = replace(
        graph,
        blobs={name: blob for name, blob in graph.blobs.items() if name in shared},
        ops={name: op for name, op in graph.ops.items() if name in shared},
    )
    for k in range(count):
        for op in graph.ops.values():
            if op.name not in shared:
                inputs = [blob if blob in shared else f"replica{k}/{blob}" for blob in op.inputs]
                lane = f"compute:{k}" if op.lane == "compute" else op.lane
                part = {"part": k, "parts": count} if op.kind == "samples" else {}
                result = add(result, f"replica{k}/{op.name}", op.kind, *inputs, lane=lane, **part)
    gradients = [f"grad/{name}" for name in graph.states if f"grad/{name}" in graph.blobs]
    for name in ["loss", *gradients]:
        result = add(result, name, "mean", *(f"replica{k}/{name}" for k in range(count)))
    return result


# 6. The dispatcher is counters
#
# It answers one question: this op of this iteration is complete; which ops are ready now? An edge
# (before, after, distance) says that `after` in iteration i + distance waits for `before` in
# iteration i. Blobs are edges of distance 0. States are edges of distance 1: the first layer of
# iteration i + 1 waits for its own weight only, so there is no barrier between iterations. The
# credit bounds the iterations in flight. It is edges too: the roots of iteration i + credit wait
# for the ends of iteration i.
#
# The core has no threads, no tensors and no clock. So tests can drive it through any order of
# events, and threads, CUDA streams and a simulator can share it.


class Core:
    """The state of one execution of a graph."""

    def __init__(self, graph: Graph, iterations: int, *, credit: int = 2) -> None:
        edges = {
            (graph.states.get(blob, blob), op.name, int(blob in graph.states))
            for op in graph.ops.values()
            for blob in op.inputs
        }
        ends = set(graph.ops) - {before for before, _, distance in edges if distance == 0}
        roots = set(graph.ops) - {after for _, after, distance in edges if distance == 0}
        edges |= {(end, root, credit) for end in ends for root in roots}
        self.edges = {name: sorted(edge for edge in edges if edge[0] == name) for name in graph.ops}
        self.waiting = {(i, name): 0 for i in range(iterations) for name in graph.ops}
        for _, after, distance in edges:
            for i in range(distance, iterations):  # in earlier ones there is nothing to wait for
                self.waiting[i, after] += 1
        self.left = len(self.waiting)

    def start(self) -> list[tuple[int, str]]:
        """The ops that are ready at the start."""
        return [token for token, count in self.waiting.items() if count == 0]

    def complete(self, name: str, iteration: int) -> list[tuple[int, str]]:
        """Record that an op of an iteration is complete; returns what became ready."""
        self.left -= 1
        readers = [(iteration + distance, after) for _, after, distance in self.edges[name]]
        readers = [token for token in readers if token in self.waiting]
        for token in readers:
            self.waiting[token] -= 1
        return [token for token in readers if self.waiting[token] == 0]


# 7. Lanes are threads around the core
#
# Each lane takes the oldest of its ready ops, runs the kernel without holding the lock, and tells
# the core. Every kernel is a pure function of blobs that exist, so the numbers do not depend on how
# the threads interleave. (Nothing is released here. Purine releases a buffer after its last reader,
# and lets kernels work in place where nobody reads the old value.)


def run(graph: Graph, iterations: int) -> dict[tuple[str, int], Tensor]:
    """Run a graph and return every value it made, by blob and iteration."""
    core, lock, end = Core(graph, iterations), threading.Lock(), (iterations, "")
    values = {(name, 0): first_value(graph.blobs[name]) for name in graph.states}
    carried = {following: name for name, following in graph.states.items()}
    lanes = {op.lane: PriorityQueue[tuple[int, str]]() for op in graph.ops.values()}

    def send(tokens: list[tuple[int, str]]) -> None:
        for token in tokens:
            lanes[graph.ops[token[1]].lane].put(token)

    def work(lane: str) -> None:
        try:
            while core.left and (token := lanes[lane].get()) != end:
                iteration, op = token[0], graph.ops[token[1]]
                inputs = [values[blob, iteration] for blob in op.inputs]
                result = KINDS[op.kind](*inputs, **dict(op.settings))
                with lock:
                    values[op.name, iteration] = result
                    if op.name in carried:
                        values[carried[op.name], iteration + 1] = result
                    send(core.complete(op.name, iteration))
        finally:  # also after a failed kernel, so that no lane waits for its result
            for queue in lanes.values():
                queue.put(end)

    send(core.start())
    with ThreadPoolExecutor(len(lanes)) as threads:
        for lane in [threads.submit(work, lane) for lane in lanes]:
            lane.result()
    return values


def first_value(blob: Blob) -> Tensor:
    """Random numbers for weights, zeros for everything else; a function of the name alone."""
    if not blob.name.startswith("weight"):
        return torch.zeros(blob.shape, dtype=torch.float64)
    source = torch.Generator().manual_seed(sum(blob.name.encode()))
    value = torch.randn(blob.shape, generator=source, dtype=torch.float64)
    return value / math.sqrt(blob.shape[0])


# 8. All of it together

if __name__ == "__main__":
    ITERATIONS = 150
    net = wave_net()
    gradients = backward(net, "loss")
    step = sgd(gradients, rate=0.1, momentum=0.9)
    split = sgd(replicate(gradients, 2), rate=0.1, momentum=0.9)
    for title, graph in {"net": net, "step": step, "two replicas": split}.items():
        used = sorted({op.lane for op in graph.ops.values()})
        print(f"{title}: {len(graph.ops)} ops on lanes {', '.join(used)}")

    # No barrier: as soon as the counter has run, the data of iteration 1 can be read.
    ahead = Core(step, 2).complete("iteration/next", 0)
    print(f"after op 'iteration/next' of iteration 0: {ahead}")
    assert (1, "x") in ahead

    serial, replicated = run(step, ITERATIONS), run(split, ITERATIONS)
    losses = [float(serial["loss", i]) for i in range(ITERATIONS)]
    for i in [*range(0, ITERATIONS, 30), ITERATIONS - 1]:
        print(f"iteration {i:3}: loss {losses[i]:.5f}")
    assert losses[-1] < 0.05 * losses[0]

    # The same numbers up to rounding: a sum is added in another order.
    difference = max(
        float((serial[blob, i] - replicated[blob, i]).abs().max())
        for blob in ("loss", *net.states)
        for i in range(ITERATIONS)
    )
    print(f"largest difference between one replica and two: {difference:.1e}")
    assert difference < 1e-9
