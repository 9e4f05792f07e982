"""Random nets under random schemes of every kind train as one device does.

One device sees the same samples in the same batches. Without batch norm that is the plain step for
the whole batch. With it, micro-batches are normalised one by one (`accumulate`), micro-batch k of
all replicas together: their samples lie apart in the batch, so the one device reads its samples in
that order, and no layer may draw numbers for the samples by their place. Hybrids, which normalise
the samples of each device by themselves up to a layer, are without batch norm here.

A scheme may refuse a net, with an error of ours and before anything runs. Few are refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
from hypothesis import HealthCheck, Phase, event, given, reject, settings
from hypothesis import strategies as st

import purine as pu
from purine.analysis.infer import with_batch
from purine.errors import ConfigError, PurineError
from purine.graph import Graph
from purine.parallel import SCHEDULES, Scheme, shard
from purine.parallel.accumulate import accumulate
from purine.placement.devices import devices_of
from purine.placement.place import place
from purine.placement.values import gather_values
from purine.recipe import compose
from tests.parallel.nets import Trained, agree, in_order, trained
from tests.parallel.random_nets import SHAPE, Recipe, recipes

STEPS, CLIP = 3, 0.5
SOLVER = partial(pu.solvers.sgd, lr=0.05, momentum=0.9, weight_decay=1e-3)

SIZES = [
    (data, pipeline, model)
    for data in (1, 2, 3)
    for pipeline in (1, 2, 3, 4)
    for model in (1, 2, 3)
    if data * pipeline * model <= 8
]
"""How many replicas, stages and shards: none of them alone, each alone, two of them, and all."""

REFUSALS = ("would have no work", "cannot be cut into", "of the cut is empty", "there is no block")
"""Why a scheme may refuse a net: it is too small, or no backward reads what a block makes."""


def layers_of(net: Graph) -> list[str]:
    """The ops with parameters."""
    return [
        op.name
        for op in net.ops.values()
        if any(name in net.states and net.states[name].trainable for name in op.inputs)
    ]


@dataclass(frozen=True)
class Case:
    """A net, how it is trained, and how many samples each part of its batch has."""

    recipe: Recipe
    scheme: Scheme
    accumulate: int
    share: int

    @property
    def batch(self) -> int:
        """The samples that the net is given."""
        return self.share * prod(self.scheme.parts.values())

    @property
    def micro(self) -> int:
        """Into how many parts an update of a replica is cut."""
        return self.scheme.micro_batches * self.accumulate

    def step(self) -> Graph:
        return compose(
            with_batch(self.recipe.net(), self.batch),
            solver=SOLVER,
            devices=f"cpu:0-{self.scheme.devices - 1}",
            clip=CLIP,
            accumulate=self.accumulate,
            scheme=self.scheme,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    recipe = draw(recipes())
    net = recipe.net()
    ops = [op.name for op in net.ops.values() if op.lane == "compute"]
    data, pipeline, model = draw(st.sampled_from(SIZES))
    schedule, chunks, micro, cut = None, None, draw(st.integers(1, 3)), ()
    if pipeline > 1:
        schedule = draw(st.sampled_from(sorted(SCHEDULES)))
        chunks = draw(st.integers(1, 2)) if schedule == "interleaved" else 1
        micro = pipeline if chunks == 2 else micro
        if pipeline * chunks <= len(ops) and model == 1 and draw(st.booleans()):
            others = st.integers(1, len(ops) - 1)
            count = pipeline * chunks - 1
            places = draw(st.lists(others, min_size=count, max_size=count, unique=True))
            cut = tuple(ops[place] for place in sorted(places))
    hybrid = model > 1 and pipeline == 1 and draw(st.booleans())
    block = draw(st.sampled_from(layers_of(net))).split("/")[0]
    scheme = Scheme(
        data=data,
        pipeline=pipeline,
        model=model,
        hybrid=hybrid,
        schedule=schedule,
        chunks=chunks,
        micro=micro,
        topology=draw(st.sampled_from(["sharded", "server", "tree", "ring", "native"])),
        bucket=draw(st.sampled_from([0, 500, 1 << 16])),
        batch_norm="synchronised",
        recompute=draw(st.sampled_from([None, None, 2, 3, (block,)])),
        cut=cut,
    )
    case = Case(recipe, scheme, draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 2)))
    return fitting(case)


def fitting(case: Case) -> Case:
    """The case without layers for which one device cannot do the same."""
    if not case.recipe.has("norm"):
        return case
    recipe = case.recipe
    if case.scheme.hybrid:
        recipe = recipe.without("norm")
    elif case.micro > 1 and case.scheme.data > 1:
        recipe = recipe.without("drop")
    return replace(case, recipe=recipe, share=2)  # of one value there is no variance


def step_of(net: Graph) -> Graph:
    return SOLVER(pu.solvers.clip_by_norm(pu.backward(net), CLIP))


def train(step: Graph, batch: int, *, order: tuple[int, int] = (1, 1)) -> Trained:
    """Losses and whole states; replicas and micro-batches of the samples change places."""
    generator = torch.Generator().manual_seed(0)
    count = STEPS * batch
    values = torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (count,), generator=generator)
    turned = torch.arange(count).view(STEPS, *order, -1).transpose(1, 2).flatten()
    source = pu.data.ArraySource(values[turned].numpy(), labels[turned].numpy(), classes=10)
    found = trained(in_order(step), data=pu.data.DataSet("random", source), steps=STEPS)
    return Trained(found.losses, gather_values(step, found.states))


def serial(case: Case) -> Trained:
    """What one device gives; see the top of this file."""
    net, batch = case.recipe.net(), case.batch * case.accumulate
    if not case.recipe.has("norm"):
        return train(step_of(with_batch(net, batch)), batch)
    step = accumulate(step_of(with_batch(net, batch // case.micro)), case.micro)
    return train(step, batch, order=(case.scheme.data, case.micro))


def test_random_nets_under_random_schemes_train_as_on_one_device() -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )
    @given(case=cases())
    def trains_as_on_one_device(case: Case) -> None:
        try:
            step = case.step()
        except ConfigError as error:
            if not any(text in error.what for text in REFUSALS):
                raise
            seen["refused"] += 1
            event(f"refused: {error.what}")
            reject()  # another is drawn instead
        seen["ran"] += 1
        event(f"ran: {case.scheme.data} x {case.scheme.pipeline} x {case.scheme.model}")
        assert len(devices_of(step)) <= case.scheme.devices
        agree(train(step, case.batch * case.accumulate), serial(case))

    trains_as_on_one_device()
    assert seen["ran"] >= 30
    assert seen["ran"] > 4 * seen["refused"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes(), count=st.integers(2, 3), data=st.data())
def test_random_layers_cut_by_rows_and_columns(
    recipe: Recipe, count: int, data: st.DataObject
) -> None:
    net = with_batch(recipe.net(), 3)
    layers = st.sampled_from(layers_of(net))
    way = st.sampled_from(["rows", "columns"])
    by = data.draw(st.one_of(way, st.dictionaries(layers, way, min_size=1, max_size=3)))
    ops = data.draw(st.none() | st.lists(layers, min_size=1, max_size=3, unique=True))
    try:
        cut = shard(net, f"cpu:0-{count - 1}", ops=ops, by=by)  # type: ignore[arg-type]
    except PurineError as error:
        if "can be cut" not in error.what and "cannot be cut" not in error.what:
            raise
        event("refused")
        return
    event("ran")
    agree(train(step_of(cut), 3), train(step_of(net), 3))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes(), data=st.data())
def test_random_ops_at_random_places(recipe: Recipe, data: st.DataObject) -> None:
    net = with_batch(recipe.net(), 3)
    ops = st.sampled_from(sorted(net.ops))
    places = st.sampled_from(["cpu:0", "cpu:1", "cpu:2"])
    step = step_of(place(net, data.draw(st.dictionaries(ops, places, max_size=8))))
    agree(train(step, 3), train(step_of(net), 3))
