"""A trained net for PyTorch: its values under torch's names, or a program that runs without Purine.

The program is a `torch.export` of the ATen ops of the net; `torch.export.load(file).module()` gives
a module. Names of states are paths: `conv1/weight` is `conv1.weight` in torch.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from purine.analysis.infer import with_batch
from purine.errors import GraphError, PurineError, in_a_line
from purine.exporters.net import TrainedNet
from purine.graph import NOTHING, Graph
from purine.optimize import inference
from purine.registry.aten import dtype_of
from purine.registry.lookup import lookup

__all__ = ["program_bytes", "program_of", "state_dict", "state_dict_bytes"]


class _Module(nn.Module):
    """The ops of a graph one after the other, and its states as parameters and buffers."""

    def __init__(self, graph: Graph, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.kernels = [(op, lookup(op).bind(op)) for op in graph.in_order]
        self.paths = {name: _attach(self, graph, name, values[name]) for name in graph.states}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        blobs = dict(zip(self.graph.inputs, inputs, strict=True))
        for name, (module, attribute) in self.paths.items():
            blobs[name] = getattr(module, attribute)
        for op, kernel in self.kernels:
            results = kernel(*(blobs[name] for name in op.inputs))
            several = (results,) if isinstance(results, Tensor) else results
            for name, value in zip(op.outputs, several, strict=True):
                if name != NOTHING:
                    blobs[name] = value
        return tuple(blobs[name] for name in self.graph.outputs)


def _attach(root: nn.Module, graph: Graph, name: str, value: Tensor) -> tuple[nn.Module, str]:
    """Make the value of a state an attribute at its path, in modules made for it."""
    module = root
    *parents, last = torch_name(name).split(".")
    for parent in parents:
        if not isinstance(getattr(module, parent, nn.Module()), nn.Module):
            parent = f"{parent}_"
        if not hasattr(module, parent):
            module.add_module(parent, nn.Module())
        module = getattr(module, parent)
    while hasattr(module, last):
        last = f"{last}_"
    value = value.detach().clone()
    if graph.states[name].trainable and value.is_floating_point():
        module.register_parameter(last, nn.Parameter(value))
    else:
        module.register_buffer(last, value)
    return module, last


def torch_name(name: str) -> str:
    """A path as torch writes it.

    >>> torch_name("conv1/weight"), torch_name("layer.0.bias")
    ('conv1.weight', 'layer.0.bias')
    """
    return ".".join(filter(None, name.replace("/", ".").split("."))) or "value"


def state_dict(trained: TrainedNet) -> dict[str, Tensor]:
    """The values of all states by torch's names; two states of one such name keep their own."""
    names = [torch_name(name) for name in trained.values]
    return {
        name if names.count(name) == 1 else own: value.detach().clone().contiguous()
        for name, (own, value) in zip(names, trained.values.items(), strict=True)
    }


def state_dict_bytes(trained: TrainedNet) -> bytes:
    """A file for `torch.load(..., weights_only=True)`."""
    data = io.BytesIO()
    torch.save(state_dict(trained), data)
    return data.getvalue()


def program_bytes(trained: TrainedNet) -> tuple[bytes, list[str]]:
    """A file for `torch.export.load`, and notes."""
    program, notes = program_of(trained)
    data = io.BytesIO()
    torch.export.save(program, data)
    return data.getvalue(), notes


def program_of(trained: TrainedNet) -> tuple[ExportedProgram, list[str]]:
    """The net as a program of ATen ops, for batches of any size where it takes them; and notes."""
    graph = trained.graph
    try:
        any_size = inference(with_batch(trained.net, 2), graph.outputs)
        return _exported(any_size, trained.values, any_batch=True), []
    except Exception as error:  # what torch raises for sizes that an op fixes is not documented
        reason = error.what if isinstance(error, PurineError) else in_a_line(error)
        size = next((graph.blobs[name].shape or () for name in graph.inputs), ())
        note = f"it takes batches of {size[0] if size else 'one size'} only ({reason})"
    try:
        return _exported(graph, trained.values, any_batch=False), [note]
    except Exception as error:
        what, expected = "torch cannot export this net", "ops that torch.export can trace"
        remedy = "export its values alone: --format safetensors"
        raise GraphError(what, expected, in_a_line(error), remedy) from error


def _exported(graph: Graph, values: Mapping[str, Tensor], *, any_batch: bool) -> ExportedProgram:
    module = _Module(graph, values).eval()
    blobs = [graph.blobs[name] for name in graph.inputs]
    inputs = tuple(torch.zeros(blob.shape or (), dtype=dtype_of(blob.dtype)) for blob in blobs)
    sizes = (tuple({0: Dim("batch")} for _ in blobs),) if any_batch else None
    return torch.export.export(module, inputs, dynamic_shapes=sizes)
