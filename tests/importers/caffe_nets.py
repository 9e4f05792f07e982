"""Small prototxt texts for tests, imported in float64."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from purine.graph import Graph
from purine.importers.caffe import Imported, from_caffe
from tests.reference import run

__all__ = ["INPUT", "bring", "layer", "one_layer", "values_of"]

INPUT = 'name: "small" input: "x" input_shape { dim: 3 dim: 4 dim: 7 dim: 6 }\n'


def bring(folder: Path, text: str, **options: object) -> Imported:
    """The import of a text."""
    path = folder / "net.prototxt"
    path.write_text(text, encoding="utf-8")
    return from_caffe(path, **{"dtype": "float64", **options})


def layer(type: str, rest: str = "", *, bottom: str = "x", top: str = "y", name: str = "op") -> str:
    """A layer with the given bottoms and tops (names with spaces between them)."""
    bottoms = "".join(f'bottom: "{item}" ' for item in bottom.split())
    tops = "".join(f'top: "{item}" ' for item in top.split())
    return f'layer {{ name: "{name}" type: "{type}" {bottoms}{tops}{rest} }}\n'


def one_layer(folder: Path, x: Tensor, type: str, rest: str = "") -> dict[str, Tensor]:
    """The values of a net of one layer on x; its result is `y`."""
    dims = " ".join(f"dim: {extent}" for extent in x.shape)
    text = f'input: "x" input_shape {{ {dims} }}\n' + layer(type, rest)
    return values_of(bring(folder, text).net, x=x)


def values_of(graph: Graph, **feeds: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    states = {
        name: torch.randn(blob.shape or (), generator=generator, dtype=torch.float64)
        for name, blob in ((name, graph.blobs[name]) for name in graph.states)
        if blob.dtype == "float64" and graph.states[name].trainable
    }
    return run(graph, feeds, states)
