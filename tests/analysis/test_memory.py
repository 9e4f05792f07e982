"""What a graph holds at its worst moment."""

from __future__ import annotations

import pytest

import purine as pu
from purine.analysis.infer import size_in_bytes
from purine.analysis.memory import peak_memory
from purine.graph import Builder, Location
from purine.parallel import pipeline
from purine.placement.copies import insert_copies
from tests.parallel.test_pipeline import step_of

HERE, THERE = Location(device="cpu:0"), Location(device="cpu:1")


def chain(*kinds: str, location: Location = HERE) -> Builder:
    """Ops one behind the other on blobs of 400 bytes: x is fed, y0, y1, ... are made."""
    b = Builder()
    name = b.blob("x", (10, 10))
    for number, kind in enumerate(kinds):
        result = b.blob(f"y{number}", (10, 10), location=location)
        b.op(f"op{number}", kind, [name], [result], location=location)
        name = result
    b.outputs.append(name)
    return b


def test_a_blob_goes_with_its_last_reader() -> None:
    assert peak_memory(chain("Softmax", "Softmax", "Softmax").graph()) == {HERE: 3 * 400}


def test_results_written_over_inputs_take_nothing() -> None:
    assert peak_memory(chain("Softmax", "aten.neg", "aten.neg").graph()) == {HERE: 2 * 400}


def test_ops_that_nothing_follows_do_not_end_the_walk() -> None:
    b = chain("Softmax", "Softmax", "Softmax")
    b.op("end", "aten.repeat", ["y1"], [b.blob("z", (10, 100))], {"repeats": (1, 10)})
    b.outputs = ["y2", "z"]
    assert peak_memory(b.graph()) == {HERE: 400 + 400 + 400 + 4000}


def test_what_is_asked_for_stays() -> None:
    b = chain("Softmax", "Softmax", "Softmax")
    b.outputs.append("y0")
    assert peak_memory(b.graph()) == {HERE: 4 * 400}


def test_aliases_count_once_and_where_they_are() -> None:
    graph = insert_copies(chain("Softmax", "Softmax", location=THERE).graph())
    assert peak_memory(graph) == {HERE: 400, THERE: 2 * 400}


def test_states_count_where_they_are() -> None:
    step = pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=1)), lr=0.1, momentum=0.9)
    # Gradients go into the update as they come: not all of them are there at once.
    states = sum(size_in_bytes(step.blobs[name]) for name in step.states)
    weights = sum(size_in_bytes(step.blobs[n]) for n, s in step.states.items() if s.trainable)
    found = peak_memory(step)[HERE]
    assert states < found < states + weights


@pytest.mark.parametrize("name", ["lenet", "resnet50", "gpt2"])
def test_1f1b_holds_less_than_gpipe(name: str) -> None:
    # Activations decide in every stage: fc1 alone would hold its weights and hardly anything else.
    cut = ["conv2", "fc1"] if name == "lenet" else None

    def peaks(schedule: str, micro: int) -> list[int]:
        step = pipeline(step_of(name), devices="cpu:0-2", micro=micro, schedule=schedule, cut=cut)
        return list(peak_memory(step).values())

    few, many = peaks("gpipe", 4), peaks("gpipe", 12)
    assert peaks("gpipe", 12)[0] > 1.2 * few[0]
    assert all(one < all_ for one, all_ in zip(peaks("1f1b", 12), many, strict=True))
    # Later stages need no more for more micro-batches; the first one has their samples too.
    assert peaks("1f1b", 12)[1:] == pytest.approx(peaks("1f1b", 6)[1:], rel=0.02)
