"""The net of a run in the formats of other tools. A file is built completely before it is
written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save

from purine.arguments import checked
from purine.errors import ConfigError
from purine.exporters.caffe import caffe_files
from purine.exporters.net import TrainedNet, trained_net, whole_net
from purine.exporters.onnx import onnx_bytes
from purine.exporters.torch import program_bytes, state_dict_bytes
from purine.job.config import Job
from purine.job.folder import RunFolder
from purine.job.measuring import saved_net
from purine.job.placing import workers_of

__all__ = ["SUFFIXES", "Export", "export"]

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "safetensors": (".safetensors",),
    "torch": (".pt2", ".pt", ".pth"),
    "caffe": (".prototxt",),
    "onnx": (".onnx",),
}
"""The formats, and how their files may end; the first is that of a file without a name."""


@dataclass(frozen=True)
class Export:
    """Files with their content, and notes for the user."""

    files: Mapping[Path, bytes]
    iteration: int
    notes: Sequence[str] = ()


@checked
def export(
    folder: RunFolder,
    format: str,
    path: Path | str,
    *,
    iteration: int | None = None,
    outputs: Sequence[str] = (),
) -> Export:
    """The net of a run as files at `path`, which are not written yet."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES[format]:
        expected = f"a name that ends in {' or '.join(SUFFIXES[format])}"
        remedy = f"write --out {path.with_suffix(SUFFIXES[format][0]) if path.name else 'a name'}"
        what = f"a file of type {suffix or 'unknown'} cannot hold {format}"
        raise ConfigError(what, expected, path.name or "no name", remedy, where=path)
    job = folder.read_config()
    saved, net = saved_net(folder, iteration)
    at = saved.iteration // workers_of(job)
    if format == "safetensors" or suffix in (".pt", ".pth"):
        trained = whole_net(folder.path.name, net, saved.values)
        by_name = {name: value.contiguous() for name, value in trained.values.items()}
        data = save(by_name) if format == "safetensors" else state_dict_bytes(trained)
        return Export({path: data}, at)
    trained = trained_net(folder.path.resolve().name, net, saved.values, outputs)
    prepared = _prepared(job, trained)
    if format == "caffe":
        text, weights = caffe_files(trained)
        model = path.with_suffix(".caffemodel")
        return Export({model: weights, path: text.encode()}, at, (prepared,))
    data, notes = (program_bytes if format == "torch" else onnx_bytes)(trained)
    return Export({path: data}, at, (*notes, prepared))


def _prepared(job: Job, trained: TrainedNet) -> str:
    """A note about how samples must be prepared for the net, which does not do it itself."""
    graph = trained.graph
    forms = ", ".join(str(graph.blobs[name]) for name in graph.inputs)
    parts = [f"mean {job.mean}" if job.mean is not None else "the mean image of the run"]
    parts.append("scale 1/255 for bytes" if job.scale is None else f"scale {job.scale:g}")
    if job.crop is not None:
        parts.append(f"crop {job.crop} from the middle, with pad {job.pad}")
    return f"it reads {forms}; the job prepares samples with {', '.join(parts)}"
