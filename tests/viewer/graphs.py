"""Graphs for the tests of pictures: nets and steps, made once."""

from __future__ import annotations

from functools import cache
from typing import Any

from purine import zoo
from purine.analysis.infer import check
from purine.graph import Graph
from purine.job.config import Job
from purine.job.placing import scheme_of
from purine.recipe import compose
from purine.solvers import sgd
from purine.viewer.graph_document import graph_document

__all__ = ["document_of", "step_of"]


@cache
def step_of(net: str, devices: str, parallel: str | None = None) -> Graph:
    """The training step of a net of the zoo."""
    scheme = scheme_of(Job(devices=devices, parallel=parallel))
    return check(compose(zoo.NETS[net](), solver=sgd, devices=devices, scheme=scheme))


@cache
def document_of(net: str, devices: str = "") -> Any:
    """The document of a net, or of its step on some devices. Not to be changed."""
    graph = step_of(net, devices) if devices else check(zoo.NETS[net]())
    return graph_document(graph, title=f"{net} {devices}".strip())
