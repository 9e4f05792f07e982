"""Every kind: its gradient against torch.autograd in float64, and its manners with memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import purine.runtime.run  # noqa: F401  (registers the kinds that runs make)
from purine.autodiff import backward, gradient_of
from purine.graph import Graph, Op, verify
from purine.kinds.net import Net
from purine.registry.kind import Kind
from purine.registry.lookup import kinds, lookup
from tests.kinds.cases import ATEN_CASES, CASES, NOT_DIFFERENTIATED, Case
from tests.reference import run


def results_of(case: Case, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    found = (case.oracle or case.kernel())(*inputs, *case.implied())
    return (found,) if isinstance(found, Tensor) else tuple(found)


def weights_of(case: Case) -> dict[int, Tensor]:
    """A fixed random cotangent for each result that is used."""
    generator = torch.Generator().manual_seed(1)
    results = results_of(case, list(case.inputs))
    return {
        place: torch.randn(results[place].shape, generator=generator, dtype=torch.float64)
        for place in case.used
    }


def net_of(case: Case, weights: dict[int, Tensor]) -> tuple[Graph, list[str]]:
    """The op, and the sum of each used result times its weights as a loss."""
    net = Net(dtype="float64")
    inputs = [
        net.input(f"input{i}", value.shape, str(value.dtype).removeprefix("torch."))
        for i, value in enumerate(case.inputs)
    ]
    found = case.kernel()(*case.inputs, *case.implied())
    count = 1 if isinstance(found, Tensor) else len(found)
    labels = [str(place) for place in range(count)]
    results = net.apply_many(case.kind, inputs, case.attributes, name="op", labels=labels)
    losses = []
    for place, weight in weights.items():
        factor = net.input(f"weight{place}", weight.shape)
        product = net.apply("Eltwise", [results[place], factor], {"operation": "product"})
        losses.append(net.apply("aten.sum", [product], name=f"loss{place}").name)
    return net.graph(), losses


@pytest.mark.parametrize("case", CASES + ATEN_CASES, ids=str)
def test_gradient_is_that_of_autograd(case: Case) -> None:
    weights = weights_of(case)
    net, losses = net_of(case, weights)
    wanted = [f"input{place}" for place in case.sources]
    graph = verify(backward(net, losses=dict.fromkeys(losses, 1.0), wrt=wanted))
    assert not any(changes_an_input(op) for op in graph.ops.values())
    feeds = {f"input{i}": value for i, value in enumerate(case.inputs)}
    feeds |= {f"weight{place}": value for place, value in weights.items()}
    values = run(graph, feeds)

    leaves = [
        value.clone().requires_grad_(place in case.sources)
        for place, value in enumerate(case.inputs)
    ]
    results = results_of(case, leaves)
    total = sum((results[place] * weight).sum() for place, weight in weights.items())
    assert isinstance(total, Tensor)
    expected = torch.autograd.grad(total, [leaves[place] for place in case.sources])

    for place in case.used:
        torch.testing.assert_close(values[f"op/{place}"], results[place].detach())
    for name, gradient in zip(wanted, expected, strict=True):
        torch.testing.assert_close(values[gradient_of(name)], gradient, rtol=1e-9, atol=1e-12)


def changes_an_input(op: Op) -> bool:
    schema = getattr(lookup(op).function, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def test_the_table_covers_all_kinds() -> None:
    covered = {case.kind for case in CASES}
    without = {"Arrival", "CustomGradient", "Data", "Fence", "Fused", "Put", "Segment"}
    without |= {"HostReduce", "HostBroadcast", "Post", "Round", "Take"}
    made_by_runs = {"Adjoin", "KeptProduct", "PackFilters", "UpdateShare", "UpdateShared"}
    apart = {case.kind for case in NOT_DIFFERENTIATED} | without | made_by_runs
    assert not covered & apart
    ours = {name for name, kind in kinds().items() if not of_solvers(kind) and is_ours(kind)}
    assert ours == covered | apart


def is_ours(kind: Kind) -> bool:
    """Other tests register kinds of their own."""
    return str(getattr(kind.function, "__module__", "purine.")).startswith("purine.")


def of_solvers(kind: Kind) -> bool:
    """Whether a kind is a solver's, which works on gradients and has none."""
    module = getattr(kind.function, "__module__", "")
    solvers = ("purine.kinds.loss_scale", "purine.kinds.rates", "purine.kinds.update.")
    return module.startswith(solvers)


@pytest.mark.parametrize("case", CASES + NOT_DIFFERENTIATED, ids=str)
def test_no_kind_changes_its_inputs_or_returns_their_memory(case: Case) -> None:
    inputs = [value.clone() for value in (*case.inputs, *case.implied())]
    found = case.kernel()(*inputs)
    results = (found,) if isinstance(found, Tensor) else found
    for value, before in zip(inputs, (*case.inputs, *case.implied()), strict=True):
        assert torch.equal(value, before)
    if not kinds()[case.kind].view:
        memory = {value.untyped_storage().data_ptr() for value in inputs}
        assert memory.isdisjoint(result.untyped_storage().data_ptr() for result in results)


@pytest.mark.parametrize("case", CASES + NOT_DIFFERENTIATED, ids=str)
def test_every_kind_keeps_the_dtype_of_a_float32_net(case: Case) -> None:
    inputs = [v.float() if v.is_floating_point() else v for v in (*case.inputs, *case.implied())]
    found = case.kernel()(*inputs)
    results = (found,) if isinstance(found, Tensor) else found
    named = case.attributes.get("dtype", "float32")
    if case.kind.startswith("Encode"):  # beside reals they write codes and indices
        results = [result for result in results if result.is_floating_point()]
    assert {str(result.dtype) for result in results} == {f"torch.{named}"}
