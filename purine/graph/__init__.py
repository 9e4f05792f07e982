"""The bipartite graph of ops and blobs: values, a builder, rules and text forms."""

from purine.graph.builder import Builder
from purine.graph.dot import to_dot
from purine.graph.explorer import to_model_explorer
from purine.graph.graph import Graph, to_text
from purine.graph.nodes import (
    CHANNELS_LAST,
    COLLECTIVES,
    FETCH,
    LAST,
    NOTHING,
    ROUND,
    Attribute,
    Blob,
    Filler,
    Lane,
    Location,
    Op,
    Origin,
    State,
)
from purine.graph.verify import DTYPES, RULES, Kinds, Rule, problems, verify
from purine.graph.yaml import from_yaml, load_yaml, save_yaml, to_yaml

__all__ = [
    "CHANNELS_LAST",
    "COLLECTIVES",
    "DTYPES",
    "FETCH",
    "LAST",
    "NOTHING",
    "ROUND",
    "RULES",
    "Attribute",
    "Blob",
    "Builder",
    "Filler",
    "Graph",
    "Kinds",
    "Lane",
    "Location",
    "Op",
    "Origin",
    "Rule",
    "State",
    "from_yaml",
    "load_yaml",
    "problems",
    "save_yaml",
    "to_dot",
    "to_model_explorer",
    "to_text",
    "to_yaml",
    "verify",
]
