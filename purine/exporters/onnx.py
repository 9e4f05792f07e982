"""A trained net as ONNX, through torch's own exporter; needs the extra `purine[onnx]`."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import torch

from purine.errors import ConfigError, GraphError, in_a_line
from purine.exporters.net import TrainedNet
from purine.exporters.torch import program_of

__all__ = ["onnx_bytes"]

_NEEDED = ("onnx", "onnxscript")
_LARGEST = 2**31 - 1


def onnx_bytes(trained: TrainedNet) -> tuple[bytes, list[str]]:
    """The net as an ONNX model whose inputs and outputs have the names of blobs; and notes."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        what, expected = "ONNX needs packages that are not installed", " and ".join(_NEEDED)
        remedy = "pip install 'purine[onnx]'"
        raise ConfigError(what, expected, f"no {' and no '.join(missing)}", remedy)
    program, notes = program_of(trained)
    inputs, outputs = trained.graph.inputs, trained.graph.outputs
    exporter = partial(torch.onnx.export, input_names=inputs, output_names=outputs, dynamo=True)
    try:
        with _quiet():
            exported = exporter(program, verbose=False)
    except Exception as error:  # of any of the packages that take part
        what, expected = "ONNX has no form for this net", "ops that torch's exporter translates"
        remedy = "export the program for torch: --format torch"
        raise GraphError(what, expected, in_a_line(error), remedy) from error
    assert exported is not None
    data: bytes = exported.model_proto.SerializeToString()
    if len(data) > _LARGEST:
        what, remedy = "the net is too large for one ONNX file", "export it with --format torch"
        raise ConfigError(what, f"at most {_LARGEST:,} bytes", f"{len(data):,}", remedy)
    return data, notes


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter prints about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
