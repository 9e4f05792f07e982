from __future__ import annotations

import pytest

from purine.analysis.infer import check, complete, infer_op, problems, with_batch
from purine.analysis.tracing import Spec
from purine.errors import GraphError, KindError
from purine.graph import Builder, Graph, Op, from_yaml
from purine.kinds import Net, conv, dropout, inner_product, relu

NET = """
- {type: blob, name: x, size: [2, 3, 8, 8]}
- {type: blob, name: weight, size: [4, 3, 3, 3]}
- {type: op, op_type: Conv, name: conv1, inputs: [x, weight], outputs: [conv1], stride: 2}
- {type: op, op_type: Relu, name: relu1, inputs: [conv1], outputs: [relu1]}
"""


def written(*lines: str) -> Graph:
    return from_yaml("\n".join(lines))


def test_shapes_of_results_are_filled_in() -> None:
    graph = complete(from_yaml(NET))
    assert graph.blobs["relu1"].shape == (2, 4, 3, 3)
    assert complete(graph) == graph
    assert check(graph) == graph


def test_declared_shapes_are_kept_and_compared() -> None:
    graph = from_yaml(NET + "- {type: blob, name: relu1, size: [2, 4, 4, 4]}\n")
    assert complete(graph).blobs["relu1"].shape == (2, 4, 4, 4)
    with pytest.raises(KindError, match=r"'relu1' .* has size \[2, 4, 4, 4\]") as caught:
        check(graph)
    assert (caught.value.op, caught.value.blob) == ("relu1", "relu1")
    assert str(caught.value.expected).startswith("size [2, 4, 3, 3]")


def test_a_declared_dtype_is_compared() -> None:
    builder = Builder()
    builder.op("r", "Relu", [builder.blob("x", (2,))], [builder.blob("y", (2,), "float64")])
    (problem,) = problems(builder.graph())
    assert problem.found == "dtype float64"


def test_implied_inputs_and_streams_are_filled_in() -> None:
    builder = Builder()
    builder.op("drop1", "Dropout", [builder.blob("x", (2, 3))], [builder.blob("y", None)])
    graph = check(builder.graph())
    assert graph.ops["drop1"].inputs == ("x", "seed", "iteration")
    assert graph.ops["drop1"].attributes["stream"] == "drop1"
    assert set(graph.states) == {"seed", "iteration"}
    assert graph.states["iteration"].next == "iteration/next"


def test_implied_inputs_that_are_written_stay() -> None:
    net = Net()
    dropout(net.input("x", (2, 3)), name="drop")
    graph = net.graph()
    assert complete(graph) == graph


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("op_type: Rellu, inputs: [x], outputs: [y]", KindError, "unknown kind 'Rellu'"),
        ("op_type: Relu, inputs: [x], outputs: [y], slope: 1", KindError, "unknown attribute"),
        ("op_type: Relu, inputs: [x, x], outputs: [y]", KindError, "has 2 inputs"),
        ("op_type: Relu, inputs: [x], outputs: [y, z]", KindError, "has 2 outputs"),
        ("op_type: Split, inputs: [x], outputs: [y, z], parts: 2", KindError, "equal parts"),
        ("op_type: Data, inputs: [], outputs: [y]", KindError, "writes blob 'y' of unknown size"),
        ("op_type: Relu, inputs: [nothing], outputs: [y]", GraphError, "'nothing'"),
    ],
)
def test_mistakes_name_the_op(line: str, kind: type[GraphError], message: str) -> None:
    graph = written("- {type: blob, name: x, size: [2, 3]}", f"- {{type: op, name: mine, {line}}}")
    with pytest.raises(kind, match="'mine'") as caught:
        check(graph)
    assert message in str(caught.value)
    assert caught.value.op == "mine"
    assert problems(graph)[0].what == caught.value.what


def test_what_torch_says_of_inputs_is_told_with_their_names() -> None:
    op = Op("fc", "aten.mm", ("x", "w"), ("y",), where="net.yaml:9")
    with pytest.raises(KindError) as caught:
        infer_op(op, [Spec((2, 3), "float32"), Spec((4, 5), "float32")])
    assert caught.value.where == "net.yaml:9"
    assert "x: float32 [2, 3]; w: float32 [4, 5]" in str(caught.value.found)


def test_equal_looking_attributes_are_not_mixed_up() -> None:
    whole = Op("a", "aten.full", (), ("y",), {"size": (), "fill_value": 1})
    real = Op("a", "aten.full", (), ("y",), {"size": (), "fill_value": 1.0})
    assert infer_op(whole, []) == (Spec((), "int64"),)
    assert infer_op(real, []) == (Spec((), "float32"),)


def test_another_batch_size_changes_what_depends_on_it_and_nothing_else() -> None:
    net = Net()
    image, _ = net.data((4, 3, 8, 8))
    inner_product(relu(conv(image, 5, kernel=3, name="conv1")), 10, name="fc1")
    graph = with_batch(net.graph(), 7)
    assert graph.blobs["data"].shape == (7, 3, 8, 8)
    assert graph.blobs["label"].shape == (7,)
    assert graph.blobs["fc1"].shape == (7, 10)
    for name in net.graph().states:
        assert graph.blobs[name] == net.graph().blobs[name]
    assert with_batch(graph, 4) == net.graph()


def test_another_batch_size_leaves_inputs_without_dimensions() -> None:
    net = Net()
    net.apply("aten.mul.Tensor", [net.input("x", (4, 3)), net.input("factor", ())], name="y")
    graph = with_batch(net.graph(), 2)
    shapes = {name: blob.shape for name, blob in graph.blobs.items()}
    assert shapes == {"x": (2, 3), "factor": (), "y": (2, 3)}
