"""Values that a run starts from instead of its fillers: weights and a mean image.

Weights are caffemodels, or safetensors by the names of states. As in Caffe, values that the net has
no state for are left out, states without a value keep their fillers, and shapes must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from purine.data.prepare import MEAN_IMAGE
from purine.errors import ConfigError, FormatError
from purine.files import expanded, unreadable
from purine.graph import Graph
from purine.importers.caffe.files import read_bytes
from purine.importers.caffe.weights import StoredLayer, read_file, read_mean
from purine.job.config import Job
from purine.registry.aten import dtype_of
from purine.registry.clock import ITERATION, SEED

__all__ = ["absolute_weights", "read_mean_file", "start_values"]

_STATES = "values of states (safetensors)"


def absolute_weights(text: str) -> str:
    """The paths of weights so that they do not depend on the current folder."""
    return ",".join(str(path.resolve()) for path in _paths(text))


def start_values(
    job: Job, net: Graph, layers: Sequence[StoredLayer], mean_image: Tensor | None
) -> tuple[dict[str, Tensor], list[str]]:
    """Values and notes for the start of a job; `layers` and `mean_image` are a Caffe net's."""
    values, notes = _read_weights(job.weights, net, layers) if job.weights else ({}, [])
    if job.mean_file is not None:
        values[MEAN_IMAGE] = read_mean_file(job.mean_file)
    elif mean_image is not None:
        values[MEAN_IMAGE] = mean_image
    return values, notes


def _read_weights(
    text: str, net: Graph, layers: Sequence[StoredLayer]
) -> tuple[dict[str, Tensor], list[str]]:
    """The values of the net's states in the files that `text` names, and notes; later files win."""
    values: dict[str, Tensor] = {}
    notes: list[str] = []
    for path in _paths(text):
        by_state = path.suffix == ".safetensors"
        stored, more = _by_state(path, net) if by_state else _by_layer(path, net, layers)
        if not stored:
            what = "nothing in these weights fits the net"
            expected = f"values of its states: {_list(sorted(net.states)) or 'it has none'}"
            found = "; ".join(more).removeprefix(f"{path}: ") or "no values"
            remedy = "take the weights of this net, or leave --weights out"
            raise FormatError(what, expected, found, remedy, where=path)
        values |= stored
        notes += more
    unset = [name for name, state in net.states.items() if state.trainable and name not in values]
    if unset:
        notes.append(f"{text}: no values for {_list(unset)}; they keep their fillers")
    return values, notes


def read_mean_file(name: str) -> Tensor:
    """The mean image in a binaryproto file, or in the copy that a run keeps (safetensors)."""
    path = expanded(name)
    if path.suffix != ".safetensors":
        return read_mean(path).float()
    values = _loaded(path)
    if MEAN_IMAGE not in values:
        what, expected = "the file holds no mean image", f"a value {MEAN_IMAGE!r}"
        remedy = "name a binaryproto file, or the copy in the folder of a run"
        raise FormatError(what, expected, _list(sorted(values)) or "no values", remedy, where=path)
    return values[MEAN_IMAGE]


def _paths(text: str) -> list[Path]:
    return [expanded(item.strip()) for item in text.split(",") if item.strip()]


def _by_layer(
    path: Path, net: Graph, layers: Sequence[StoredLayer]
) -> tuple[dict[str, Tensor], list[str]]:
    if not layers:
        what = "these weights need the layers of a Caffe net"
        expected = "a .safetensors file with the names of the net's states"
        convert = "purine import caffe NET --weights FILE -o net.yaml"
        remedy = f"name the definition: --net train_val.prototxt; or convert them: {convert}"
        raise ConfigError(what, expected, "weights by the names of layers", remedy, where=path)
    stored, notes = read_file(path, layers, {name: _shape(net, name) for name in net.states})
    return {name: _typed(net, name, value) for name, value in stored.items()}, notes


def _by_state(path: Path, net: Graph) -> tuple[dict[str, Tensor], list[str]]:
    values, left_out = {}, []
    for name, value in _loaded(path).items():
        if name in (SEED, ITERATION):
            continue
        if name not in net.states:
            left_out.append(name)
        elif tuple(value.shape) != _shape(net, name):
            what = f"the value of {name!r} does not fit the net"
            expected, found = f"shape {list(_shape(net, name))}", str(list(value.shape))
            remedy = "take the values of this net; or rename the state, and it keeps its filler"
            raise FormatError(what, expected, found, remedy, where=path, blob=name)
        else:
            values[name] = _typed(net, name, value)
    note = f"{path}: the net has no states {_list(sorted(left_out))}; they are passed over"
    return values, [note] if left_out else []


def _loaded(path: Path) -> Mapping[str, Tensor]:
    data = read_bytes(path, _STATES)
    try:
        return dict(load(data))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        what, remedy = "the file is damaged, or of another kind", "fetch or write the file again"
        raise unreadable(FormatError, path, str(error), _STATES, what, remedy) from error


def _shape(net: Graph, name: str) -> tuple[int, ...]:
    return net.blobs[name].shape or ()


def _typed(net: Graph, name: str, value: Tensor) -> Tensor:
    return value.to(dtype_of(net.blobs[name].dtype))


def _list(items: Sequence[str]) -> str:
    shown = ", ".join(items[:8])
    return shown + (f" and {len(items) - 8} more" if len(items) > 8 else "")
