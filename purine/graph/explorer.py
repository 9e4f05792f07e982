"""Graphs in the JSON of Model Explorer, a viewer of graphs with nested layers."""

from __future__ import annotations

import json
from collections.abc import Iterator

from purine.arguments import checked
from purine.graph.graph import Graph
from purine.graph.nodes import Blob

__all__ = ["to_model_explorer"]

_Node = dict[str, object]


@checked
def to_model_explorer(graph: Graph) -> str:
    """The graph as Model Explorer reads it: a file to open there.

    Nodes are ops, and the blobs that no op writes; other blobs are outputs of their ops. Blocks are
    layers. That a state's next blob becomes its value is an attribute: the viewer knows no cycles.

    >>> from purine.graph.builder import Builder
    >>> b = Builder()
    >>> _ = b.op("block/relu", "Relu", [b.blob("x", (2, 3))], [b.blob("y", (2, 3))])
    >>> nodes = json.loads(to_model_explorer(b.graph()))["graphs"][0]["nodes"]
    >>> [(node["label"], node["namespace"]) for node in nodes]
    [('x', ''), ('Relu', 'block')]
    >>> nodes[1]["incomingEdges"][0]["sourceNodeId"]
    'blob x'
    """
    nodes = [*_blob_nodes(graph), *_op_nodes(graph)]
    document = {"label": "purine", "graphs": [{"id": graph.digest[:12], "nodes": nodes}]}
    return json.dumps(document) + "\n"


def _blob_nodes(graph: Graph) -> Iterator[_Node]:
    for blob in graph.blobs.values():
        if blob.name in graph.producers:
            continue
        state = graph.states.get(blob.name)
        facts = {} if state is None else {"next": state.next, "filler": str(state.filler)}
        block, _, last = blob.name.rpartition("/")
        yield {
            "id": f"blob {blob.name}",
            "label": last or blob.name,
            "namespace": block,
            "attrs": _pairs({"name": blob.name, "location": str(blob.location), **facts}),
            "incomingEdges": [],
            "outputsMetadata": [_output("0", blob)],
        }


def _op_nodes(graph: Graph) -> Iterator[_Node]:
    before: dict[str, list[str]] = {}
    for first, second in sorted(graph.control):
        before.setdefault(second, []).append(first)
    for op in graph.ops.values():
        facts = {"name": op.name, "location": str(op.location), "lane": str(op.lane)}
        settings = {key: str(value) for key, value in op.attributes.items()}
        if op.name in before:
            settings["after"] = ", ".join(before[op.name])
        yield {
            "id": f"op {op.name}",
            "label": op.kind,
            "namespace": op.name.rpartition("/")[0],
            "attrs": _pairs(facts | settings),
            "incomingEdges": [_edge(graph, name, str(at)) for at, name in enumerate(op.inputs)],
            "outputsMetadata": [
                _output(str(at), graph.blobs[name]) for at, name in enumerate(op.outputs) if name
            ],
        }


def _edge(graph: Graph, name: str, at: str) -> dict[str, str]:
    producer = graph.producers.get(name)
    if producer is None:
        source, output = f"blob {name}", "0"
    else:
        source, output = f"op {producer.name}", str(producer.outputs.index(name))
    return {"sourceNodeId": source, "sourceNodeOutputId": output, "targetNodeInputId": at}


def _output(at: str, blob: Blob) -> dict[str, object]:
    return {"id": at, "attrs": _pairs({"__tensor_tag": blob.name, "tensor_shape": blob.type_text})}


def _pairs(facts: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in facts.items()]
