"""The document of a graph: what is folded into one, and where everything stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from purine import zoo
from purine.analysis.infer import check
from purine.graph import Graph, Op, Origin, from_yaml, to_yaml
from purine.graph.names import restored, template_of
from purine.lowering import lower, options_for
from purine.recipe import compose
from purine.solvers import sgd
from purine.viewer.arrange import arrange, opened
from purine.viewer.graph_document import graph_document
from purine.viewer.layering import layers_of, ranks_of
from purine.viewer.sources import source_lines
from tests.viewer.graphs import document_of, step_of

SCHEMES = {
    "replicas": ("cpu:0-3", None),
    "pipeline": ("cpu:0-1", "pipeline=2,micro=4"),
    "shards": ("cpu:0-1", "model=2"),
    "workers": ("cpu:0-1", "asynchronous=easgd"),
    "hosts": ("host0-1:cpu:0", None),
}


def names_of(document: Any, kind: str) -> list[str]:
    """The names that all nodes of a type stand for."""
    names = []
    for node in document["nodes"]:
        if node["type"] == kind:
            variants = document["variants"][node["variant"]] if "variant" in node else [[]]
            for holes in variants:
                pairs = zip(["", *holes], node["pieces"], strict=True)
                names.append("".join(hole + piece for hole, piece in pairs))
    return names


def inner(document: Any, number: int = 0) -> Iterator[int]:
    """The nodes in a group."""
    for row in document["nodes"][number].get("rows", ()):
        for item in (item for cell in row for item in cell if item > 0):
            yield item
            yield from inner(document, item)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_op_and_blob_but_the_clocks_is_in_the_document_once(scheme: str) -> None:
    graph = step_of("lenet", *SCHEMES[scheme])
    document = graph_document(graph, clock=True)
    assert sorted(names_of(document, "op")) == sorted(graph.ops)
    assert sorted(names_of(document, "blob")) == sorted(graph.blobs)
    without = graph_document(graph)
    hidden = set(graph.ops) - set(names_of(without, "op"))
    assert any(name.split("/")[-1] == "lr" for name in hidden)
    scalars = {blob for name in hidden for blob in graph.ops[name].outputs}
    assert all(graph.blobs[blob].shape == () for blob in scalars)
    ops = [at for at, node in enumerate(without["nodes"]) if node["type"] == "op"]  # type: ignore
    assert sorted(set(ops) & set(inner(without))) == ops  # and each has its place


def test_replicas_are_folded_into_one() -> None:
    two, eight = document_of("lenet", "cpu:0-1"), document_of("lenet", "cpu:0-7")
    assert eight["ops"] > 3 * two["ops"]
    forward = [node for node in eight["nodes"] if node.get("kind") == "aten.convolution"]
    assert len(forward) == 2
    assert {len(eight["variants"][node["variant"]]) for node in forward} == {8}
    assert {tuple(eight["places"][node["place"]]) for node in forward} == {tuple(range(8))}
    assert len(json.dumps(eight)) < 1.2 * len(json.dumps(two))


def test_the_cost_of_a_folded_op_is_that_of_all_replicas() -> None:
    one, four = document_of("lenet", "cpu:0"), graph_document(step_of("lenet", "cpu:0-3"))
    assert four["nodes"][0]["flops"] == one["nodes"][0]["flops"]  # type: ignore


def test_equal_graphs_have_equal_documents() -> None:
    graph = step_of("lenet", "cpu:0-3")
    again = restored(from_yaml(to_yaml(graph)))
    first, second = graph_document(graph), graph_document(again)
    assert json.dumps(first) == json.dumps(graph_document(graph))
    assert sorted(names_of(first, "op")) == sorted(names_of(second, "op"))


def test_a_lowered_graph_has_a_document_with_the_costs_of_its_segments() -> None:
    step = step_of("lenet", "cpu:0")
    lowered = lower(step, options_for(step))
    document = graph_document(lowered)
    assert document["ops"] == len(lowered.graph.ops)
    assert document["nodes"][0]["flops"] == graph_document(step)["nodes"][0]["flops"]  # type: ignore


def test_a_node_tells_what_a_reader_asks_for() -> None:
    document = document_of("lenet", "cpu:0-7")
    nodes = document["nodes"]
    (conv,) = [node for node in nodes if node["type"] == "op" and node["pieces"] == ["", "conv2"]]
    assert (conv["kind"], conv["role"]) == ("aten.convolution", "forward")
    assert [nodes[at]["shape"] for at in conv["out"]] == ["float32 8x50x8x8"]
    reads = {"*".join(nodes[at]["pieces"]) for at in conv["in"]}
    assert reads >= {"*pool1", "conv2/weight", "conv2/weight@*"}
    update = next(node for node in nodes if node.get("pieces") == ["update/conv2/weight"])
    assert (update["role"], update["column"]) == ("update", "update")
    weight = next(node for node in nodes if node.get("pieces") == ["conv2/weight"])
    assert nodes[weight["next"]]["pieces"] == ["conv2/weight/next"]
    assert weight["state"] == "parameter"


def test_the_line_of_a_file_is_kept() -> None:
    text = """
    - {type: blob, name: x, size: [2, 3]}
    - {type: blob, name: y, size: [2, 3]}
    - {type: op, op_type: Relu, name: relu, inputs: [x], outputs: [y]}
    """
    document = graph_document(from_yaml(text, file="net.yaml"))
    (op,) = [node for node in document["nodes"] if node["type"] == "op"]  # type: ignore
    assert op["where"] == "net.yaml:4"  # type: ignore


def test_a_block_stands_in_one_row_in_all_columns() -> None:
    document = document_of("googlenet", "cpu:0-1")
    nodes = document["nodes"]
    for row in nodes[0]["rows"]:
        for at, cell in enumerate(row):
            assert all(nodes[i]["column"] == document["columns"][at] for i in cell if i > 0)
    row_of = {item: at for at, row in enumerate(nodes[0]["rows"]) for cell in row for item in cell}
    rows: dict[str, set[int]] = {}
    for item, row in row_of.items():
        if item > 0:
            rows.setdefault(nodes[item]["block"], set()).add(row)
    assert {len(found) for found in rows.values()} == {1}
    order = [rows[block].pop() for block in ("conv1", "norm2", "inception3a", "inception5b", "fc")]
    assert order == sorted(order)


@pytest.mark.parametrize("devices", ["", "cpu:0-1"])
@pytest.mark.parametrize("net", ["lenet", "googlenet"])
@pytest.mark.parametrize("depth", [None, 1, 2, 9])
def test_boxes_do_not_overlap(net: str, devices: str, depth: int | None) -> None:
    document = document_of(net, devices)
    picture = arrange(document, opened(document, depth))
    nodes = document["nodes"]
    members: dict[int, list[int]] = {}
    for number in picture.boxes:
        members.setdefault(nodes[number]["parent"], []).append(number)
    assert members[0]
    for group, numbers in members.items():
        boxes = sorted((picture.boxes[number] for number in numbers), key=lambda box: box.y)
        for at, a in enumerate(boxes):
            for b in boxes[at + 1 :]:
                apart = a.x + a.w <= b.x + 0.01 or b.x + b.w <= a.x + 0.01 or a.y + a.h <= b.y
                assert apart, (nodes[group]["label"], a, b)
            if group:
                outer = picture.boxes[group]
                assert outer.x <= a.x
                assert a.x + a.w <= outer.x + outer.w
                assert a.y + a.h <= outer.y + outer.h


def test_a_cycle_of_groups_is_drawn() -> None:
    assert ranks_of([1, 2, 3], [(1, 2), (2, 3), (3, 2)]) == {1: 0, 2: 1, 3: 2}
    layers = layers_of([1, 2, 3], [(1, 2), (2, 3), (3, 1)])
    assert sorted(item for row in layers.rows for item in row if item > 0) == [1, 2, 3]
    assert [way[0] for way in layers.ways] == [1, 2, 3]


def test_rows_are_ordered_so_that_edges_do_not_cross() -> None:
    layers = layers_of([1, 2, 3, 4, 5], [(1, 2), (1, 3), (3, 4), (2, 5)])
    assert layers.rows == [[1], [2, 3], [5, 4]]


def test_a_graph_without_ops_has_a_document() -> None:
    document = graph_document(Graph())
    assert (document["ops"], len(document["nodes"])) == (0, 1)  # type: ignore
    arrange(document, ())


def test_names_of_users_are_not_taken_for_parts() -> None:
    origin = Origin("block/unit1")
    assert template_of("block/unit1/conv", Op("block/unit1/conv", "Relu", (), ())) == (
        ("block/unit1/conv",),
        (),
    )
    shard = Op("fc/shard1/mm", "aten.mm", (), (), origin=Origin("fc", shard=1))
    assert template_of("fc/shard1/mm", shard) == (("fc/shard", "/mm"), ("1",))
    net = Op("block/unit1", "Relu", (), (), origin=origin)
    assert template_of("block/unit1", net) == (("block/unit1",), ())
    copied = Op("a@b@cpu:1", "Copy", (), (), origin=Origin("a@b", "copy"))
    assert template_of("a@b@cpu:1", copied) == (("a@b@", ""), ("cpu:1",))


def test_devices_are_in_the_order_of_their_numbers() -> None:
    document = graph_document(step_of("googlenet", "cpu:0-11", "pipeline=12,micro=2"))
    assert document["locations"] == [f"cpu:{number}" for number in range(12)]


def test_what_hosts_have_of_a_parameter_stands_in_its_row() -> None:
    """Large parameters are joined and their gradients cut on each host, beside their block."""
    graph = step_of("lenet", "host0-1:cpu:0")
    assert any(name.startswith("host0/join/") for name in graph.ops)
    nodes = graph_document(graph)["nodes"]
    root: Any = nodes[0]  # type: ignore[index]
    tops = {nodes[at]["label"] for row in root["rows"] for cell in row for at in cell if at > 0}
    assert not [label for label in tops if "host" in label or "momentum" in label]


def test_ops_of_a_step_have_the_lines_of_the_net() -> None:
    net = from_yaml(to_yaml(check(zoo.lenet(batch=4))), file="net.yaml")
    step = check(compose(net, solver=sgd, devices="host0-1:cpu:0"))
    lines = source_lines(step, net)
    for name in ("replica1/conv1", "replica0/grad/conv1/convolution_backward"):
        assert lines[name] == net.ops["conv1"].where
    weight = net.blobs["conv1/weight"].where
    for name in ("update/conv1/weight", "reduce/grad/conv1/weight", "conv1/weight@host0/cpu:0"):
        assert lines.get(name, weight) == weight
    assert lines["host0/join/fc1/weight"] == net.blobs["fc1/weight"].where
    shown = graph_document(step, lines=lines)["nodes"]
    bare = [n["pieces"] for n in shown if n["type"] == "op" and "where" not in n]  # type: ignore
    assert bare == []
