from collections.abc import Iterator, Sequence

import pytest

from purine.errors import GraphError, KindError
from purine.graph import (
    NOTHING,
    RULES,
    Blob,
    Builder,
    Graph,
    Location,
    Op,
    from_yaml,
    problems,
    verify,
)

FAR = Location("10.0.0.2", "cuda:0")


def good() -> Builder:
    """A small training step: y = x * w, w_next = update(w, y)."""
    b = Builder()
    for name in ("x", "w", "w_next", "y"):
        b.blob(name, (2, 3), where=f"net.yaml:{len(b.blobs) + 1}")
    b.op("mul", "Mul", ["x", "w"], ["y", NOTHING], where="net.yaml:11")
    b.op("update", "Update", ["w", "y"], ["w_next"], where="net.yaml:12")
    b.state("w", "w_next", trainable=True, where="net.yaml:13")
    b.control.add(("mul", "update"))
    b.outputs = ["y"]
    return b


def only(graph: Graph) -> GraphError:
    """The single mistake of the graph, told in full."""
    (error,) = problems(graph)
    assert None not in (error.expected, error.found, error.remedy)
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert str(caught.value) == str(error)
    return error


def test_a_good_graph_passes_and_is_returned() -> None:
    graph = good().graph()
    assert problems(graph) == []
    assert verify(graph) is graph
    assert verify(Graph()) == Graph()


def test_an_op_and_a_blob_may_share_a_name() -> None:
    b = good()
    b.op("y", "Relu", ["x"], [])
    assert problems(b.graph()) == []


def test_keys_are_names() -> None:
    graph = Graph(
        blobs={"a": Blob("b", (1,), where="net.yaml:1")}, ops={"p": Op("q", "Relu", ("no",), ())}
    )
    first, second = problems(graph)
    assert str(first).startswith("net.yaml:1: blob 'b' is kept under the key 'a'")
    assert second.what == "op 'q' is kept under the key 'p'"
    assert second.op == "q"


@pytest.mark.parametrize(
    "name", ["", "a b", "a\tb", "a\n", "a\x00", "a\u200b", "a\u2028", "\ud800"]
)
def test_names_are_usable(name: str) -> None:
    b = good()
    b.add(Blob(name, (1,), where="net.yaml:20"))
    error = only(b.graph())
    assert error.what == f"blob has the name {name!r}"
    assert (error.where, error.blob) == ("net.yaml:20", name)
    b = good()
    b.op(name, "Relu", ["x"], [])
    assert only(b.graph()).op == name


def test_inputs_exist_and_a_near_name_is_suggested() -> None:
    b = good()
    b.op("relu1", "Relu", ["w_nxt"], [], where="net.yaml:20")
    error = only(b.graph())
    assert str(error) == (
        "net.yaml:20: op 'relu1' reads blob 'w_nxt', which nothing declares\n"
        "  expected: the name of a blob of the graph\n"
        "  found: 'w_nxt'\n"
        "  to do: declare the blob, or correct the name: did you mean 'w_next'?"
    )
    assert (error.op, error.blob, error.location) == ("relu1", "w_nxt", "host 127.0.0.1, cpu:0")


def test_outputs_of_ops_exist() -> None:
    b = good()
    b.op("relu1", "Relu", ["x"], ["quite_new"])
    assert only(b.graph()).what == "op 'relu1' writes blob 'quite_new', which nothing declares"


def test_one_producer() -> None:
    b = good()
    b.op("again", "Relu", ["x"], ["y"], where="net.yaml:20")
    error = only(b.graph())
    assert error.what == "ops 'mul' and 'again' both write blob 'y'"
    assert error.found == "op 'mul' (net.yaml:11) and op 'again' (net.yaml:20)"
    assert (error.where, error.op, error.blob) == ("net.yaml:20", "again", "y")


def test_an_op_writes_a_blob_once() -> None:
    b = Builder()
    b.blob("y", (1,))
    b.op("twin", "Split", [], ["y", "y"])
    assert only(b.graph()).what == "op 'twin' writes blob 'y' twice"


def test_states_have_blobs() -> None:
    b = good()
    b.state("v", where="net.yaml:20")
    error = only(b.graph())
    assert error.what == "state 'v' has the read blob 'v', which nothing declares"
    assert error.where == "net.yaml:20"
    b = good()
    b.state("x", "x_next")
    assert only(b.graph()).what == "state 'x' has the next blob 'x_next', which nothing declares"


def test_states_are_not_produced() -> None:
    b = good()
    b.op("init", "Fill", [], [b.blob("v", (1,))], where="net.yaml:20")
    b.state("v")
    error = only(b.graph())
    assert error.what == "op 'init' writes blob 'v', which is a state"
    assert (error.where, error.op, error.blob) == ("net.yaml:20", "init", "v")


def test_states_have_their_own_next() -> None:
    b = good()
    b.state("x", "w_next")
    assert only(b.graph()).what == "states 'w' and 'x' have the same next blob 'w_next'"


@pytest.mark.parametrize(
    ("blob", "what", "found"),
    [
        (Blob("v_next", (3, 2)), "shape", "shape (3, 2)"),
        (Blob("v_next", (2, 3), "float64"), "dtype", "dtype float64"),
        (Blob("v_next", (2, 3), location=FAR), "location", "location host 10.0.0.2, cuda:0"),
    ],
)
def test_states_are_typed_alike(blob: Blob, what: str, found: str) -> None:
    b = good()
    b.blob("v", (2, 3))
    b.add(blob)
    b.op("inc", "Copy", ["v"], ["v_next"])
    b.state("v", "v_next", where="net.yaml:20")
    error = only(b.graph())
    assert error.what == f"state 'v' and its next blob 'v_next' differ in {what}"
    assert (error.where, error.found) == ("net.yaml:20", found)


def test_an_op_carries_a_state_on() -> None:
    b = good()
    b.blob("v", (2, 3))
    b.blob("v_next", (2, 3))
    b.state("v", "v_next", where="net.yaml:20")
    error = only(b.graph())
    assert error.what == "state 'v' is carried on by blob 'v_next', which no op writes"
    assert error.where == "net.yaml:20"


def test_a_shape_still_to_be_inferred_may_be_a_states_next() -> None:
    b = good()
    b.blob("v", (2, 3))
    b.op("inc", "Add", ["v"], [b.blob("v_next", None)])
    b.state("v", "v_next")
    assert problems(b.graph()) == []


def test_outputs_of_the_graph_exist() -> None:
    b = good()
    b.outputs.append("loss")
    error = only(b.graph())
    assert error.what == "output 'loss' is no blob of the graph"


def test_control_names_ops() -> None:
    b = good()
    b.control.add(("mul", "y"))
    error = only(b.graph())
    assert error.what == "control edge 'mul' -> 'y' names 'y', which is no op"
    assert error.op == "y"


def test_a_blob_without_a_producer_has_a_shape() -> None:
    b = good()
    b.add(Blob("z", None, where="net.yaml:20"))
    error = only(b.graph())
    assert error.what == "blob 'z' has no shape, and no op produces it"
    assert (error.where, error.blob) == ("net.yaml:20", "z")


@pytest.mark.parametrize("shape", [(2, -1), (2.0,), (True,), ("3",)])
def test_shapes_are_sizes(shape: tuple[int, ...]) -> None:
    b = good()
    b.blob("z", shape)
    assert only(b.graph()).what == f"blob 'z' has the shape {shape}"


def test_an_empty_dimension_is_a_size() -> None:
    b = good()
    b.blob("z", (0, 3))
    assert problems(b.graph()) == []


def test_dtypes_are_known() -> None:
    b = good()
    b.blob("z", (2,), "float23")
    error = only(b.graph())
    assert error.what == "blob 'z' has the dtype 'float23'"
    assert error.remedy is not None
    assert "float" in error.remedy


@pytest.mark.parametrize(
    ("shape", "layout", "what"),
    [
        ((2, 3, 4, 5), "nhwc", "blob 'z' has the layout 'nhwc'"),
        ((2, 3), "channels-last", "blob 'z' of 2 dimensions is channels-last"),
    ],
)
def test_layouts_fit(shape: tuple[int, ...], layout: str, what: str) -> None:
    b = good()
    b.blob("z", shape, layout=layout)
    assert only(b.graph()).what == what
    b.blobs["z"] = Blob("z", (2, 3, 4, 5), layout="channels-last")
    assert problems(b.graph()) == []


def test_a_cycle_over_data_is_shown_with_its_blobs() -> None:
    b = Builder()
    for name in ("x", "y", "z", "after"):
        b.blob(name, (1,))
    b.op("tail", "Relu", ["z"], ["after"])  # behind the cycle, not on it
    b.op("a", "Relu", ["x"], ["y"], where="net.yaml:7")
    b.op("b", "Relu", ["y"], ["z"])
    b.op("c", "Relu", ["z"], ["x"])
    error = only(b.graph())
    assert error.what == "the graph has a cycle: a -> 'y' -> b -> 'z' -> c -> 'x' -> a"
    assert (error.where, error.op) == ("net.yaml:7", "a")


def test_a_cycle_over_control_edges() -> None:
    b = good()
    b.control.add(("update", "mul"))
    assert only(b.graph()).found == "mul -> 'y' -> update -> mul"
    b = good()
    b.control.add(("mul", "mul"))
    assert only(b.graph()).found == "mul -> mul"


def test_an_op_that_reads_its_own_output() -> None:
    b = Builder()
    b.op("a", "Relu", [b.blob("x", (1,))], ["x"])
    assert only(b.graph()).found == "a -> 'x' -> a"


def test_one_location_unless_it_is_a_copy() -> None:
    b = good()
    b.op("pool1", "Pool", ["y"], [], location=FAR, where="net.yaml:41")
    error = only(b.graph())
    assert str(error) == (
        "net.yaml:41: op 'pool1' at host 10.0.0.2, cuda:0 reads 'y' at host 127.0.0.1, cpu:0\n"
        "  expected: 'y' at host 10.0.0.2, cuda:0\n"
        "  found: 'y' at host 127.0.0.1, cpu:0\n"
        "  to do: put both at one location, or insert a Copy op between them"
    )
    assert (error.op, error.blob, error.location) == ("pool1", "y", "host 10.0.0.2, cuda:0")
    b = good()
    b.op("pool1", "Pool", ["y"], [b.blob("out", (1,), location=FAR)])
    assert " writes 'out' at host 10.0.0.2, cuda:0" in only(b.graph()).what
    b = good()
    b.op("send", "Copy", ["y"], [b.blob("out", (2, 3), location=FAR)])
    assert problems(b.graph()) == []


def test_a_collective_reads_from_everywhere_and_writes_where_it_is() -> None:
    b = good()
    b.op("mean", "Reduce", ["y"], [b.blob("out", (2, 3), location=FAR)], location=FAR)
    assert problems(b.graph()) == []
    b = good()
    b.op("mean", "Reduce", ["y"], [b.blob("out", (2, 3), location=FAR)])
    assert " writes 'out' at host 10.0.0.2, cuda:0" in only(b.graph()).what


class Fussy:
    """Kinds that dislike `Mul`, and remember what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str], list[str | None]]] = []

    def problems(
        self, op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob | None]
    ) -> Iterator[GraphError]:
        outs = [None if blob is None else blob.name for blob in outputs]
        self.asked.append((op.name, [blob.name for blob in inputs], outs))
        if op.kind == "Mul":
            yield KindError(f"op {op.name!r} multiplies", where=op.where, op=op.name)


def test_kinds_are_asked_about_every_op_whose_blobs_exist() -> None:
    b = good()
    b.op("lost", "Mul", ["nowhere"], [])
    kinds = Fussy()
    dangling, error = problems(b.graph(), kinds)
    assert dangling.op == "lost"
    assert isinstance(error, KindError)
    assert str(error) == "net.yaml:11: op 'mul' multiplies"
    assert kinds.asked == [("mul", ["x", "w"], ["y", None]), ("update", ["w", "y"], ["w_next"])]
    with pytest.raises(KindError):
        verify(good().graph(), Fussy())


def test_all_mistakes_are_listed_in_the_order_of_the_rules() -> None:
    graph = from_yaml(
        """
- {type: blob, name: x, size: [2], dtype: float23}
- {type: blob, name: far, size: [2], location: {device: cuda:0}}
- {type: op, op_type: Relu, name: a, inputs: [x, far, none], outputs: [y]}
- {type: op, op_type: Relu, name: b, inputs: [y], outputs: [y]}
- {type: state, blob: y, next: gone}
- {type: control, before: a, after: ghost}
- {type: output, blob: ghost}
""",
        file="net.yaml",
    )
    assert [error.what.split(" at host")[0] for error in problems(graph)] == [
        "op 'a' reads blob 'none', which nothing declares",
        "ops 'a' and 'b' both write blob 'y'",
        "state 'y' has the next blob 'gone', which nothing declares",
        "op 'b' writes blob 'y', which is a state",
        "output 'ghost' is no blob of the graph",
        "control edge 'a' -> 'ghost' names 'ghost', which is no op",
        "blob 'x' has the dtype 'float23'",
        "the graph has a cycle: b -> 'y' -> b",
        "op 'a'",
    ]
    assert problems(graph)[1].where == "net.yaml:5"


def test_every_rule_says_what_it_asks() -> None:
    assert all(rule.__doc__ for rule in RULES)


def test_many_dangling_inputs_do_not_take_forever() -> None:
    b = Builder()
    for number in range(2000):
        b.op(f"op{number}", "Relu", [f"missing{number}"], [b.blob(f"blob{number}", (1,))])
    assert len(problems(b.graph())) == 2000
