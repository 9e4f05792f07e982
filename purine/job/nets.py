"""The nets of a job: from the zoo, a graph in YAML, or a Caffe definition; checked for training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from purine.analysis.infer import check, complete, with_batch
from purine.data import DataSet, Source
from purine.errors import ConfigError, DataError, GraphError, KindError
from purine.files import expanded
from purine.graph import Builder, Graph, load_yaml
from purine.importers.caffe.weights import StoredLayer
from purine.job.caffe import caffe_net, is_prototxt, with_transform
from purine.job.config import Job
from purine.job.options import BATCH
from purine.nearest import unknown_name
from purine.registry.lookup import lookup
from purine.runtime.feeding import data_ops
from purine.zoo import NETS

__all__ = ["Nets", "find_nets", "refuse_labels", "refuse_other_parameters", "with_losses"]

_TOO_SMALL = ("Output size is too small", "Kernel size can't be greater")  # words of torch's


@dataclass(frozen=True)
class Nets:
    """The nets that a job names, and the job with what their definition says of the data.

    `test_net` is the net that measures, where that is not the net itself. `layers` and `mean_image`
    come from a Caffe definition.
    """

    job: Job
    net: Graph
    test_net: Graph | None
    notes: tuple[str, ...] = ()
    layers: tuple[StoredLayer, ...] = ()
    mean_image: Tensor | None = None


def find_nets(job: Job, data: DataSet) -> Nets:
    """The nets that a job names, built for samples of the data or read from files."""
    path = expanded(job.net)
    if job.net in NETS:
        nets = Nets(job, _zoo_net(job, data.train), None)
    elif is_prototxt(path):
        nets = _caffe_nets(job, data.train, path)
    elif path.suffix in (".yaml", ".yml"):
        net = _yaml_net(path)
        nets = Nets(job, net if job.batch is None else with_batch(net, job.batch), None)
    else:
        expected = f"{', '.join(NETS)}, a graph in a .yaml file, or a .prototxt file"
        raise unknown_name(ConfigError, "net", job.net, NETS, expected=expected)
    if job.test_net is None or (is_prototxt(path) and is_prototxt(job.test_net)):
        return nets
    return replace(nets, test_net=_yaml_net(expanded(job.test_net)))


def with_losses(net: Graph) -> Graph:
    """The net with the results of all its loss ops among its outputs."""
    losses = [op.outputs[0] for op in net.ops.values() if lookup(op).loss]
    if not losses:
        lines = (op.where.rpartition(":")[0] for op in net.ops.values() if op.where)
        expected, remedy = "at least one op of a loss kind", "add for example a SoftmaxLoss"
        found, where = _kinds_text(net), next(lines, None)
        raise GraphError("the net has no loss", expected, found, remedy, where=where)
    builder = Builder(net)
    builder.outputs += [name for name in losses if name not in net.outputs]
    return builder.graph()


def refuse_other_parameters(test_net: Graph, net: Graph) -> None:
    """Refuse a test net with parameters that training does not give it."""
    for name, state in test_net.states.items():
        shape = test_net.blobs[name].shape
        if state.trainable and (name not in net.states or net.blobs[name].shape != shape):
            what = f"parameter {name!r} of the test net is not one of the net that is trained"
            expected = f"a parameter of {list(shape or ())} in both nets"
            found = f"{list(net.blobs[name].shape or ())}" if name in net.states else "none"
            remedy = "give both nets the same layers with parameters"
            raise GraphError(what, expected, found, remedy, blob=test_net.blobs[name])


def refuse_labels(net: Graph, data: DataSet) -> None:
    """Refuse labels of more classes than the net has scores for."""
    classes = data.train.classes
    fields = {name for op in data_ops(net) for name in op.outputs}
    for op in net.ops.values():
        if op.kind != "SoftmaxLoss" or op.inputs[1] not in fields or classes is None:
            continue
        axis, shape = op.whole("axis", 1), net.blobs[op.inputs[0]].shape
        if shape is not None and shape[axis] < classes:
            what = f"data {data.name!r} has {classes} classes, and the net scores for {shape[axis]}"
            expected, found = f"at most {shape[axis]} classes", str(classes)
            remedy = "use data of fewer classes, or give the net's last layer more outputs"
            raise DataError(what, expected, found, remedy, op=op, blob=op.inputs[0])


def _caffe_nets(job: Job, source: Source, path: Path) -> Nets:
    imported = caffe_net(job, source)
    _refuse_no_source(imported.net, path)
    own_mean = job.mean is not None or job.mean_file is not None
    mean_image = None if own_mean else imported.transform.mean_image
    job, notes, layers = with_transform(job, imported), imported.notes, imported.layers
    return Nets(job, imported.net, imported.test, notes, layers, mean_image)


def _yaml_net(path: Path) -> Graph:
    net = complete(check(load_yaml(path)))
    _refuse_no_source(net, path)
    return net


def _refuse_no_source(net: Graph, path: Path) -> None:
    if not any(op.kind == "Data" for op in net.ops.values()):
        remedy = "add {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label]}"
        remedy = "give it a Data layer" if is_prototxt(path) else remedy
        what = "the net has no Data op, so there is nothing to train it on"
        expected = "an op of kind Data that gives the batches"
        raise GraphError(what, expected, _kinds_text(net), remedy, where=path)


def _kinds_text(net: Graph) -> str:
    return "kinds " + (", ".join(sorted({op.kind for op in net.ops.values()})) or "none")


def _zoo_net(job: Job, source: Source) -> Graph:
    make = NETS[job.net]
    parameters = inspect.signature(make).parameters
    sizes = _sizes(job, source)
    if not sizes or not sizes.keys() <= parameters.keys():
        raise _other_data(job, source, tokens="context" in parameters)
    try:
        return make(job.batch or BATCH, **sizes)
    except KindError as error:
        if not any(words in str(error.found) for words in _TOO_SMALL):
            raise
        image = sizes["image"]
        assert isinstance(image, tuple)
        what = f"images of {list(image)} are too small for net {job.net!r}"
        expected = "images that are left with something at every op of the net"
        remedy = "use larger images, or a net for small ones, such as lenet or mlp"
        raise DataError(what, expected, f"{error.what}: {error.found}", remedy) from error


def _other_data(job: Job, source: Source, *, tokens: bool) -> DataError:
    expected = "images [C, H, W] and the labels of classes"
    remedy = "use a net for this kind of data, in a file: --net net.yaml"
    if tokens:
        expected = "tokens [T] and as many targets, of a known vocabulary"
        example = "--data synthetic-tokens:length=64,vocabulary=256,count=1280"
        remedy = f"name data of tokens, such as {example}"
    what, fields = f"net {job.net!r} does not fit data {job.data!r}", map(str, source.fields)
    return DataError(what, expected, ", ".join(fields), remedy)


def _sizes(job: Job, source: Source) -> Mapping[str, object]:
    """The arguments of a net of the zoo that the samples decide; none where their form is new."""
    if len(source.fields) != 2 or source.classes is None:
        return {}
    first, second = source.fields
    if len(first.shape) == 3:
        side = first.shape[1:] if job.crop is None else (job.crop, job.crop)
        return {"image": (first.shape[0], *side), "classes": source.classes}
    if len(first.shape) == 1 and first == replace(second, name=first.name):
        return {"context": first.shape[0], "vocabulary": source.classes}
    return {}
