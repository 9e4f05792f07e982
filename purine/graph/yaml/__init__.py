"""The YAML form of a graph."""

from purine.graph.yaml.read import from_yaml, load_yaml
from purine.graph.yaml.write import flow, save_yaml, to_yaml

__all__ = ["flow", "from_yaml", "load_yaml", "save_yaml", "to_yaml"]
