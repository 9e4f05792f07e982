"""Graphs for Model Explorer: every op and blob is there, and edges end at what the file has."""

from __future__ import annotations

import json

import purine as pu
from purine.graph import Graph, to_model_explorer


def step() -> Graph:
    step = pu.solvers.sgd(pu.backward(pu.zoo.lenet(batch=4)), lr=0.1, momentum=0.9)
    return pu.parallel.replicate(step, "cpu:0-1")


def test_nodes_are_the_ops_and_the_blobs_that_no_op_writes() -> None:
    graph = step()
    (found,) = json.loads(to_model_explorer(graph))["graphs"]
    names = [f"blob {name}" for name in graph.blobs if name not in graph.producers]
    assert [node["id"] for node in found["nodes"]] == names + [f"op {name}" for name in graph.ops]


def test_every_input_is_an_edge_from_an_output_that_is_there() -> None:
    graph = step()
    nodes = json.loads(to_model_explorer(graph))["graphs"][0]["nodes"]
    outputs = {
        (node["id"], output["id"]): {pair["key"]: pair["value"] for pair in output["attrs"]}
        for node in nodes
        for output in node["outputsMetadata"]
    }
    for node in nodes:
        if node["id"].startswith("op "):
            sources = [
                outputs[edge["sourceNodeId"], edge["sourceNodeOutputId"]]["__tensor_tag"]
                for edge in node["incomingEdges"]
            ]
            assert sources == list(graph.ops[node["id"].removeprefix("op ")].inputs)


def test_blocks_are_layers_and_settings_attributes() -> None:
    nodes = json.loads(to_model_explorer(step()))["graphs"][0]["nodes"]
    (update,) = (node for node in nodes if node["id"] == "op update/conv1/weight")
    attributes = {pair["key"]: pair["value"] for pair in update["attrs"]}
    assert (update["label"], update["namespace"]) == ("MomentumUpdate", "update/conv1")
    assert attributes["name"] == "update/conv1/weight"
    assert float(attributes["momentum"]) == 0.9
