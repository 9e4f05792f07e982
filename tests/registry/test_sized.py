"""Kinds whose attributes follow the batch size."""

from __future__ import annotations

import pytest
import torch

from purine.analysis.infer import check, with_batch
from purine.errors import KindError
from purine.graph import Builder, Graph, Op
from purine.registry.lookup import lookup
from purine.registry.sized import counted, sized
from tests.reference import run


def graph_of(kind: str, attributes: dict[str, object]) -> Graph:
    builder = Builder()
    builder.blob("x", (4, 3))
    builder.blob("y", None)
    builder.op("y", kind, ["x"], ["y"], attributes)  # type: ignore[arg-type]
    builder.outputs = ["y"]
    return builder.graph()


def test_sizes_are_counted_in_samples() -> None:
    graph = check(graph_of("sized.aten.full", {"size": ("2*batch", 3), "fill_value": "1/batch"}))
    assert graph.blobs["y"].shape == (8, 3)
    larger = with_batch(graph, 5)
    assert larger.blobs["y"].shape == (10, 3)
    assert torch.equal(run(larger, {"x": torch.zeros(5, 3)})["y"], torch.full((10, 3), 0.2))
    assert with_batch(larger, 4) == graph


def test_random_parts_draw_what_the_whole_draws() -> None:
    settings = {"shape": ("batch", 6), "keep": 0.5, "stream": "s"}
    whole = check(graph_of("sized.RandomMask", settings))
    assert whole.ops["y"].inputs == ("x", "seed", "iteration")
    part = with_batch(check(graph_of("sized.RandomMask", {**settings, "offset": 3})), 1)
    clock = {"seed": torch.tensor(7), "iteration": torch.tensor(2)}
    everything = run(whole, {"x": torch.zeros(4, 3), **clock})["y"]
    assert torch.equal(run(part, {"x": torch.zeros(1, 3), **clock})["y"], everything[3:])


def test_an_op_takes_the_batch_before_implied_inputs() -> None:
    mask = Op("m", "RandomMask", ("seed", "iteration"), ("m",))
    assert sized(mask, "x", {"keep": 0.5}).inputs == ("x", "seed", "iteration")
    assert sized(Op("z", "aten.zeros", (), ("z",)), "x", {}).inputs == ("x",)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch", 4),
        ("3*batch", 12),
        ("0.5*batch", 2.0),
        ("batch+1", 5),
        ("1.0*batch-1", 3.0),
        ("2/batch", 0.5),
        ("1e-05*batch", 4e-05),
        ("bath", "bath"),
    ],
)
def test_texts_stand_for_numbers(text: str, value: object) -> None:
    assert repr(counted(text, 4)) == repr(value)


def test_a_size_below_nothing_is_refused() -> None:
    graph = graph_of("sized.aten.zeros", {"size": ("batch-3",)})
    with pytest.raises(KindError, match="cannot take its inputs") as caught:
        with_batch(check(graph), 2)
    assert "batch-3 is -1 for a batch of 2" in str(caught.value)


def test_there_is_no_sized_form_of_what_is_no_kind() -> None:
    for name in ("sized.Nothing", "sized.aten.nothing", "sized.Data", "sized."):
        with pytest.raises(KindError, match="unknown kind"):
            lookup(Op("op", name, (), ()))


def test_a_fixed_batch_names_whom_it_is_for() -> None:
    settings = {"batch": 4, "because": "op 'pdist' counts pairs", "holder": "pdist", "held": "far"}
    graph = check(graph_of("FixedBatch", settings))
    with pytest.raises(KindError, match="batches of 4 only: op 'pdist' counts pairs") as caught:
        with_batch(graph, 3)
    assert (caught.value.op, caught.value.blob) == ("pdist", "far")
