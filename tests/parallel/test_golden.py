"""The graphs that transforms make of one small net, as texts that a reader can check.

`UPDATE_GOLDEN=1 pytest tests/parallel/test_golden.py` writes the texts anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import purine as pu
from purine.graph import Builder, Graph, Location, to_text
from purine.kinds import Net, euclidean_loss, inner_product, relu, sigmoid
from purine.optimize import evaluation, prune, recompute
from purine.parallel import (
    accumulate,
    compress,
    delay,
    floating,
    hybrid,
    insert_copies,
    pipeline,
    place,
    place_at_cut,
    replicate,
    serve,
    shard,
    to_device,
)
from purine.parallel.reduce import TOPOLOGIES, Topology

GOLDEN = Path(__file__).parent / "golden"


def net() -> Graph:
    net = Net()
    x, target = net.input("x", (2, 3)), net.input("target", (2, 2))
    hidden = relu(inner_product(x, 2, bias=False, name="fc"), name="relu")
    net.output(euclidean_loss(hidden, target, name="loss"))
    return net.graph()


def block() -> Graph:
    """A net with a value that only its block and the backward read."""
    net = Net()
    x = net.input("x", (2, 3))
    hidden = relu(sigmoid(inner_product(x, 2, bias=False, name="b/fc"), name="b/s"), name="b/r")
    net.output(euclidean_loss(hidden, net.input("target", (2, 2)), name="loss"))
    return net.graph()


def step() -> Graph:
    return pu.solvers.sgd(pu.backward(net()), lr=0.1)


def on_hosts() -> Graph:
    """A step on two hosts, with a weight of 4 KiB."""
    net = Net()
    x, target = net.input("x", (2, 64)), net.input("target", (2, 16))
    net.output(euclidean_loss(inner_product(x, 16, bias=False, name="fc"), target, name="loss"))
    return replicate(pu.solvers.sgd(pu.backward(net.graph()), lr=0.1), "host0-1:cpu:0")


def without_copies() -> Graph:
    """The net with one op at another device, which reads from the first."""
    builder = Builder(net())
    there = Location(device="cpu:1")
    builder.ops["relu"] = replace(builder.ops["relu"], location=there)
    builder.blobs["relu"] = replace(builder.blobs["relu"], location=there)
    return builder.graph()


def replicas(topology: Topology) -> Callable[[], Graph]:
    return lambda: replicate(step(), "cpu:0-1", topology=topology, bucket=0)


def workers(scheme: str, **settings: int | bool) -> Callable[[], Graph]:
    return lambda: serve(step(), "cpu:0-1", scheme, **settings)


TRANSFORMS: dict[str, Callable[[], Graph]] = {
    "accumulate": lambda: accumulate(step(), 2),
    "backward": lambda: pu.backward(net()),
    "compress_bf16": lambda: compress(on_hosts(), "bf16"),
    "compress_int8": lambda: compress(on_hosts(), "int8"),
    "compress_topk": lambda: compress(on_hosts(), "topk", parameters="fp16"),
    "delay": lambda: delay(step(), 2),
    "evaluation": lambda: evaluation(net()),
    "floating": lambda: floating(replicate(accumulate(step(), 2, chained=False), "cpu:0-1")),
    "hybrid": lambda: hybrid(net(), "cpu:0-1"),
    "insert_copies": lambda: insert_copies(without_copies()),
    "pipeline": lambda: pipeline(step(), devices="cpu:0-1", micro=2, cut=["relu"]),
    "place": lambda: place(step(), {"relu": "cpu:1"}),
    "place_at_cut": lambda: place_at_cut(net(), ["relu"], "cpu:0-1"),
    "prune": lambda: prune(pu.backward(net()), ["relu"], states=()),
    "recompute": lambda: recompute(pu.backward(block()), "b"),
    "serve_diloco": workers("diloco", every=2),
    "serve_downpour": workers("downpour", push=2, fetch=3, stale_rate=True),
    "serve_easgd": workers("easgd"),
    "serve_gossip": workers("gossip"),
    "serve_hogwild": workers("hogwild"),
    "serve_local": workers("local", every=2),
    "serve_ssp": workers("ssp"),
    "shard": lambda: shard(net(), "cpu:0-1"),
    "step": step,
    "to_device": lambda: to_device(step(), "cuda:0"),
    **{f"replicate_{name}": replicas(name) for name in TOPOLOGIES},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_makes_the_graph_of_its_text(name: str) -> None:
    text = to_text(TRANSFORMS[name]()) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_text_is_that_of_a_transform() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(TRANSFORMS)
