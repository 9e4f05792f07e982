"""Nets from elsewhere as graphs: PyTorch modules and Caffe definitions."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from purine.graph import Graph

__all__ = ["HasStates"]


@runtime_checkable
class HasStates(Protocol):
    """A run: a graph and the values of its states."""

    @property
    def graph(self) -> Graph: ...

    def states(self) -> dict[str, Tensor]: ...
