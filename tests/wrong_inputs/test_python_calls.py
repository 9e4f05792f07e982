"""What users get wrong in calls from Python: each ends in an error of ours that is told in full.

A row is a name and a call. The calls are made on one small net, its step and a run of it.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import purine as pu
from purine import from_caffe_solver
from purine.errors import PurineError
from purine.graph import Filler
from purine.kinds import kind

Call = Callable[[Any], object]

PROTOTXT = """
name: "tiny"
layer {
  name: "in" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 2 dim: 4 } shape { dim: 2 } }
}
layer {
  name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""


class Broken(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """A data set with a mistake of its own."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise KeyError("no such file")


class NoLength(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """A data set without __len__."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(8), 0


class Endless(IterableDataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """An iterable data set without samples."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter(())


def classifier(batch: int = 4) -> pu.Graph:
    net = pu.Net()
    data, label = net.source([("data", (batch, 8), "float32"), ("label", (batch,), "int64")])
    x = pu.kinds.inner_product(data, 3, name="fc")
    net.output(pu.kinds.softmax_loss(x, label, name="loss"))
    return net.graph()


def two_losses() -> pu.Graph:
    net = pu.Net()
    data, label = net.source([("data", (4, 8), "float32"), ("label", (4,), "int64")])
    for name in ("one", "two"):
        x = pu.kinds.inner_product(data, 3, name=f"fc_{name}")
        net.output(pu.kinds.softmax_loss(x, label, name=name))
    return net.graph()


def fed() -> pu.Graph:
    net = pu.Net()
    pu.kinds.relu(net.input("x", (2, 3)), name="y")
    return net.graph()


@pytest.fixture(scope="module")
def g(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """What the calls are made with."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("calls")
    definition = folder / "tiny.prototxt"
    definition.write_text(PROTOTXT)
    x, y = torch.randn(12, 8), torch.arange(12) % 3
    net = classifier()
    step = pu.solvers.sgd(pu.backward(net), lr=0.1)
    data = pu.data.tensors(x, y, test=(x, y))
    both = pu.solvers.sgd(pu.backward(two_losses()))
    writing = pu.Net()
    var = writing.input("v", (2, 3, 8, 8))
    flat = writing.input("f", (2, 6))
    module = nn.Sequential(nn.Linear(8, 3))
    example = (x[:4], y[:4])
    with pu.Run(step, data=data) as run, pu.Run(both, data=data) as other:
        yield SimpleNamespace(
            folder=folder,
            definition=definition,
            x=x,
            y=y,
            net=net,
            back=pu.backward(net),
            step=step,
            data=data,
            test=pu.evaluation(net),
            fed=fed(),
            run=run,
            result=next(run.steps(1)),
            results=next(other.steps(1)),
            module=module,
            example=example,
            entropy=nn.functional.cross_entropy,
            imported=pu.from_torch(module, nn.functional.cross_entropy, example),
            brought=pu.from_caffe(definition),
            w=writing,
            v=var,
            f=flat,
            one=writing.input("one", (2,)),
        )


def unnamed(x: Tensor, *, size) -> Tensor:  # type: ignore[no-untyped-def]
    return x


def open_ended(x: Tensor, **more: float) -> Tensor:
    return x


def misspelt(x: Tensor, *, size: "Nowhere") -> Tensor:  # type: ignore[name-defined]  # noqa: F821,UP037
    return x


def Relu(x: Tensor) -> Tensor:
    return x


def compose(g: Any, **options: Any) -> pu.Graph:
    settings = {"solver": pu.solvers.sgd, "devices": "cpu:0-1", **options}
    return pu.compose(settings.pop("net", g.net), **settings)


def lazily() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


class Holder(nn.Module):
    """A module that returns no tensor."""

    def forward(self, x: Tensor) -> str:
        return "nothing"


RUNS: dict[str, Call] = {
    "a run of None": lambda g: pu.Run(None),
    "a run of a module": lambda g: pu.Run(g.module),
    "a run of a class": lambda g: pu.Run(pu.Graph),
    "a run of a text": lambda g: pu.Run("lenet"),
    "a run of what was imported": lambda g: pu.Run(g.imported, data=g.data),
    "a run of a net being written": lambda g: pu.Run(g.w),
    "a run of an empty graph": lambda g: pu.Run(pu.Graph()),
    "a run without data": lambda g: pu.Run(g.step),
    "a run of a graph that is fed": lambda g: next(pu.Run(g.fed).steps(1)),
    "a run with one argument too many": lambda g: pu.Run(g.step, g.data),
    "a run with an unknown option": lambda g: pu.Run(g.step, data=g.data, sed=1),
    "a run without a graph": lambda g: pu.Run(),
    "seed too large": lambda g: pu.Run(g.step, data=g.data, seed=2**64),
    "seed of 5000 digits": lambda g: pu.Run(g.step, data=g.data, seed=10**5000),
    "seed below 0": lambda g: pu.Run(g.step, data=g.data, seed=-1),
    "seed a text": lambda g: pu.Run(g.step, data=g.data, seed="0"),
    "seed a fraction": lambda g: pu.Run(g.step, data=g.data, seed=0.5),
    "seed None": lambda g: pu.Run(g.step, data=g.data, seed=None),
    "prefetch below 0": lambda g: pu.Run(g.step, data=g.data, prefetch=-1),
    "prefetch without bound": lambda g: pu.Run(g.step, data=g.data, prefetch=10**9),
    "prefetch a text": lambda g: pu.Run(g.step, data=g.data, prefetch="2"),
    "threads a text": lambda g: pu.Run(g.step, data=g.data, threads="4"),
    "threads 0": lambda g: pu.Run(g.step, data=g.data, threads=0),
    "threads true": lambda g: pu.Run(g.step, data=g.data, threads=True),
    "threads without bound": lambda g: pu.Run(g.step, data=g.data, threads=10**6),
    "share_cores a text": lambda g: pu.Run(g.step, data=g.data, share_cores="yes"),
    "compiled a text": lambda g: pu.Run(g.step, data=g.data, compiled="no"),
    "tf32 without a GPU": lambda g: pu.Run(g.step, data=g.data, tf32=True),
    "tf32 a number": lambda g: pu.Run(g.step, data=g.data, tf32=1),
    "record of another word": lambda g: pu.Run(g.step, data=g.data, record="ops"),
    "record a number": lambda g: pu.Run(g.step, data=g.data, record=1),
    "steps a text": lambda g: g.run.steps("3"),
    "steps below 0": lambda g: g.run.steps(-3),
    "steps a fraction": lambda g: g.run.steps(1.5),
    "steps None": lambda g: g.run.steps(None),
    "steps true": lambda g: g.run.steps(True),
    "evaluate None": lambda g: g.run.evaluate(None),
    "evaluate a module": lambda g: g.run.evaluate(g.module),
    "evaluate without data of its own": lambda g: g.run.evaluate(g.fed),
    "evaluate on other samples": lambda g: g.run.evaluate(g.test, data=(g.x[:, :5], g.y)),
    "evaluate on a number": lambda g: g.run.evaluate(g.test, data=3),
    "evaluate what is no number": lambda g: g.run.evaluate(pu.evaluation(g.net, ["fc"])),
    "evaluate without a test part": lambda g: pu.Run(g.step, data=(g.x, g.y)).evaluate(g.test),
    "set_states None": lambda g: g.run.set_states(None),
    "set_states a list": lambda g: g.run.set_states([1, 2]),
    "set_states of another name": lambda g: g.run.set_states({"fc/wieght": torch.zeros(3, 8)}),
    "set_states of another shape": lambda g: g.run.set_states({"fc/weight": torch.zeros(8, 3)}),
    "set_states of another dtype": lambda g: g.run.set_states({"fc/weight": np.zeros((3, 8))}),
    "set_states of a text": lambda g: g.run.set_states({"fc/weight": "zeros"}),
    "set_states of a ragged list": lambda g: g.run.set_states({"fc/weight": [[1.0], [1.0, 2.0]]}),
    "set_states of None": lambda g: g.run.set_states({"fc/weight": None}),
    "set_states by number": lambda g: g.run.set_states({0: torch.zeros(3, 8)}),
    "set_states of objects": lambda g: g.run.set_states({"fc/bias": np.array([{}, {}, {}])}),
    "save to a number": lambda g: g.run.save(3),
    "save to None": lambda g: g.run.save(None),
    "save on a file": lambda g: g.run.save(g.definition),
    "save keeping 0": lambda g: g.run.save(g.folder / "kept", keep=0),
    "save keeping a text": lambda g: g.run.save(g.folder / "kept", keep="2"),
    "save with a list as extra": lambda g: g.run.save(g.folder / "kept", extra=[1]),
    "save with what JSON cannot hold": lambda g: g.run.save(g.folder / "k", extra={"a": object()}),
    "load nothing": lambda g: g.run.load(g.folder / "none"),
    "load None": lambda g: g.run.load(None),
    "load a file": lambda g: g.run.load(g.definition),
    "pickle a run": lambda g: pickle.dumps(g.run),
    "copy a run": lambda g: copy.deepcopy(g.run),
    "an output that is not there": lambda g: g.result["accuracy"],
    "an output by number": lambda g: g.result[0],
    "the loss of two": lambda g: g.results.loss,
    "compute None": lambda g: pu.compute(None),
    "compute a net with data": lambda g: pu.compute(g.net),
    "compute without its input": lambda g: pu.compute(g.fed),
    "compute another input": lambda g: pu.compute(g.fed, {"x": np.zeros((2, 3), "f4"), "z": 1}),
    "compute of another shape": lambda g: pu.compute(g.fed, {"x": [1.0, 2.0]}),
    "compute of another dtype": lambda g: pu.compute(g.fed, {"x": np.zeros((2, 3))}),
    "compute a tensor": lambda g: pu.compute(g.fed, torch.zeros(2, 3)),
    "compute a text": lambda g: pu.compute(g.fed, {"x": "ones"}),
    "compute with seed 2**63": lambda g: pu.compute(g.fed, {"x": torch.ones(2, 3)}, seed=2**63),
    "compute with states of no name": lambda g: pu.compute(
        g.fed, {"x": torch.ones(2, 3)}, states=3
    ),
}

DATA: dict[str, Call] = {
    "data of another name": lambda g: pu.Run(g.step, data="fashion-minni"),
    "data a number": lambda g: pu.Run(g.step, data=3),
    "data a set": lambda g: pu.Run(g.step, data={1, 2}),
    "data a mapping": lambda g: pu.Run(g.step, data={"data": g.x, "label": g.y}),
    "data a class": lambda g: pu.Run(g.step, data=TensorDataset),
    "data a generator": lambda g: pu.Run(g.step, data=(row for row in g.x)),
    "data an empty tuple": lambda g: pu.Run(g.step, data=()),
    "data that lacks a tensor": lambda g: pu.Run(g.step, data=(g.x,)),
    "data with one tensor too many": lambda g: pu.Run(g.step, data=(g.x, g.y, g.y)),
    "data of another width": lambda g: pu.Run(g.step, data=(g.x[:, :5], g.y)),
    "data of another rank": lambda g: pu.Run(g.step, data=(g.x.reshape(-1, 2, 4), g.y)),
    "data of another dtype": lambda g: pu.Run(g.step, data=(g.x.double(), g.y)),
    "labels of floats": lambda g: pu.Run(g.step, data=(g.x, g.y.float())),
    "labels of another shape": lambda g: pu.Run(g.step, data=(g.x, g.y.unsqueeze(1))),
    "data of two lengths": lambda g: pu.Run(g.step, data=(g.x, g.y[:5])),
    "data without rows": lambda g: pu.Run(g.step, data=(g.x[:0], g.y[:0])),
    "data a scalar": lambda g: pu.Run(g.step, data=torch.tensor(1.0)),
    "data with None": lambda g: pu.Run(g.step, data=(g.x, None)),
    "data with a text": lambda g: pu.Run(g.step, data=(g.x, "labels")),
    "data of texts": lambda g: pu.Run(g.step, data=(np.array(["a"] * 12), g.y)),
    "data of objects": lambda g: pu.Run(g.step, data=(np.array([{}] * 12), g.y)),
    "data of dates": lambda g: pu.Run(g.step, data=(np.zeros(12, "datetime64[s]"), g.y)),
    "data a ragged list": lambda g: pu.Run(g.step, data=([[1.0], [1.0, 2.0]], g.y)),
    "data a list of ragged tensors": lambda g: pu.Run(g.step, data=([g.x, g.x[:3]], g.y)),
    "data a list of samples": lambda g: pu.Run(g.step, data=[(g.x[0], 1), (g.x[1], 2)]),
    "data sparse": lambda g: pu.Run(g.step, data=(g.x.to_sparse(), g.y)),
    "data on the meta device": lambda g: pu.Run(g.step, data=(g.x.to("meta"), g.y)),
    "an empty data set": lambda g: pu.Run(g.step, data=TensorDataset(g.x[:0], g.y[:0])),
    "a broken data set": lambda g: pu.Run(g.step, data=Broken()),
    "a data set without a length": lambda g: pu.Run(g.step, data=NoLength()),
    "an iterable without samples": lambda g: pu.Run(g.step, data=Endless()),
    "a loader with a collate_fn": lambda g: pu.Run(
        g.step, data=DataLoader(TensorDataset(g.x, g.y), collate_fn=lambda rows: rows)
    ),
    "a loader with a sampler": lambda g: pu.Run(
        g.step, data=DataLoader(TensorDataset(g.x, g.y), sampler=[0, 1, 2])
    ),
    "a loader with weights": lambda g: pu.Run(
        g.step,
        data=DataLoader(
            TensorDataset(g.x, g.y),
            sampler=torch.utils.data.WeightedRandomSampler([1.0] * 12, 12),
        ),
    ),
    "a loader with a batch sampler": lambda g: pu.Run(
        g.step, data=DataLoader(TensorDataset(g.x, g.y), batch_sampler=[[0, 1], [2]])
    ),
    "a loader without batches": lambda g: pu.Run(
        g.step, data=DataLoader(TensorDataset(g.x, g.y), batch_size=None)
    ),
    "tensors of nothing": lambda g: pu.data.tensors(),
    "tensors with another test": lambda g: pu.data.tensors(g.x, g.y, test=(g.x[:, :3], g.y)),
    "tensors with a test of one": lambda g: pu.data.tensors(g.x, g.y, test=g.x),
    "tensors with a text for test": lambda g: pu.data.tensors(g.x, g.y, test="test"),
    "as_dataset of None": lambda g: pu.data.as_dataset(None),
    "as_dataset with a number to test": lambda g: pu.data.as_dataset((g.x, g.y), test=3),
    "open_data None": lambda g: pu.data.open_data(None),
    "open_data a path of nothing": lambda g: pu.data.open_data("no/such/folder"),
    "open_data with an option too many": lambda g: pu.data.open_data("synthetic:size=3"),
    "prepare None": lambda g: pu.data.prepare(None, g.data.train),
    "prepare for a data set": lambda g: pu.data.prepare(g.net, g.data),
    "prepare for None": lambda g: pu.data.prepare(g.net, None),
    "prepare with a text as mean": lambda g: pu.data.prepare(g.net, g.data.train, mean="0.5"),
    "prepare with a text as scale": lambda g: pu.data.prepare(g.net, g.data.train, scale="1"),
    "prepare with a crop of 0.5": lambda g: pu.data.prepare(g.net, g.data.train, crop=0.5),
    "prepare with a pad below 0": lambda g: pu.data.prepare(g.net, g.data.train, pad=-1),
    "prepare with a crop below 0": lambda g: pu.data.prepare(g.net, g.data.train, crop=-4),
    "prepare with scale NaN": lambda g: pu.data.prepare(g.net, g.data.train, scale=float("nan")),
    "an ArraySource of None": lambda g: pu.data.ArraySource(None, None),
    "an ArraySource of vectors": lambda g: pu.data.ArraySource(g.x, g.y),
    "an ArraySource without names": lambda g: pu.data.ArraySource(g.x, g.y, names=None),
    "an ArraySource with one name": lambda g: pu.data.ArraySource(g.x, g.y, names=("x",)),
    "a TorchSource of None": lambda g: pu.data.TorchSource(None),
    "a TorchSource of a number": lambda g: pu.data.TorchSource(3),
    "a TorchSource with classes a text": lambda g: pu.data.TorchSource([(g.x, 1)], classes="3"),
    "an IterableSource of None": lambda g: pu.data.IterableSource(None),
    "an IterableSource of a generator": lambda g: pu.data.IterableSource(iter([(1, 2)])),
    "an IterableSource of length 0": lambda g: pu.data.IterableSource([(1, 2)], length=0),
    "a TensorSource of a text": lambda g: pu.data.TensorSource("x"),
    "samples that are not there": lambda g: g.data.train.batch(np.array([99])),
    "a DataSet of None": lambda g: pu.data.DataSet("d", None),
    "a DataSet of tensors": lambda g: pu.data.DataSet("d", g.x),
    "a DataSet without a name": lambda g: pu.data.DataSet(None, g.data.train),
    "a Field of a text": lambda g: pu.data.Field("x", "8", "float32"),
    "an Order of 0": lambda g: pu.data.Order(0, seed=0),
    "an Order of a text": lambda g: pu.data.Order("5", seed=0),
    "an Order with seed -1": lambda g: pu.data.Order(5, seed=-1),
    "a Reader of None": lambda g: pu.data.Reader(None, batch=1, seed=0, shuffle=True),
    "a Reader of batch 0": lambda g: pu.data.Reader(g.data.train, batch=0, seed=0, shuffle=True),
    "read_idx None": lambda g: pu.data.read_idx(None),
    "read_idx of no file": lambda g: pu.data.read_idx("no-such-file"),
    "idx_dataset of a number": lambda g: pu.data.idx_dataset(3),
    "npz_dataset of no file": lambda g: pu.data.npz_dataset("none.npz"),
    "npy_dataset of None": lambda g: pu.data.npy_dataset(None),
    "lmdb_dataset of None": lambda g: pu.data.lmdb_dataset(None),
    "hdf5_dataset of None": lambda g: pu.data.hdf5_dataset(None),
    "image_list_dataset of None": lambda g: pu.data.image_list_dataset(None),
    "image_list_dataset of no file": lambda g: pu.data.image_list_dataset("none.txt"),
    "synthetic images of 2 sizes": lambda g: pu.data.synthetic_images(image=(3, 8)),
    "synthetic images of 0 classes": lambda g: pu.data.synthetic_images(classes=0),
    "synthetic images of count None": lambda g: pu.data.synthetic_images(count=None),
    "synthetic images of float64": lambda g: pu.data.synthetic_images(dtype="float64"),
    "synthetic masks of a text": lambda g: pu.data.synthetic_masks(image="3x8x8"),
    "synthetic tokens of length 0": lambda g: pu.data.synthetic_tokens(length=0),
    "synthetic tokens of seed -1": lambda g: pu.data.synthetic_tokens(seed=-1),
    "fashion_mini with an argument": lambda g: pu.data.fashion_mini("train"),
}

SOLVERS: dict[str, Call] = {
    **{
        f"{name} of None": partial(lambda name, g: pu.solvers.SOLVERS[name](None), name)
        for name in pu.solvers.SOLVERS
    },
    **{
        f"{name} with lr a text": partial(
            lambda name, g: pu.solvers.SOLVERS[name](g.back, lr="0.1"), name
        )
        for name in pu.solvers.SOLVERS
    },
    **{
        f"{name} with weight_decay NaN": partial(
            lambda name, g: pu.solvers.SOLVERS[name](g.back, weight_decay=float("nan")), name
        )
        for name in pu.solvers.SOLVERS
    },
    "sgd of a module": lambda g: pu.solvers.sgd(g.module),
    "sgd of a net without gradients": lambda g: pu.solvers.sgd(g.net),
    "sgd twice": lambda g: pu.solvers.sgd(g.step),
    "sgd with lr 0": lambda g: pu.solvers.sgd(g.back, lr=0),
    "sgd with lr below 0": lambda g: pu.solvers.sgd(g.back, lr=-0.1),
    "sgd with lr None": lambda g: pu.solvers.sgd(g.back, lr=None),
    "sgd with lr true": lambda g: pu.solvers.sgd(g.back, lr=True),
    "sgd with lr infinite": lambda g: pu.solvers.sgd(g.back, lr=float("inf")),
    "sgd with lr a tensor": lambda g: pu.solvers.sgd(g.back, lr=torch.tensor(0.1)),
    "sgd with learning_rate": lambda g: pu.solvers.sgd(g.back, learning_rate=0.1),
    "sgd with lr by position": lambda g: pu.solvers.sgd(g.back, 0.1),
    "sgd with momentum 1": lambda g: pu.solvers.sgd(g.back, momentum=1.0),
    "sgd with momentum None": lambda g: pu.solvers.sgd(g.back, momentum=None),
    "sgd with nesterov alone": lambda g: pu.solvers.sgd(g.back, nesterov=True),
    "sgd with nesterov a text": lambda g: pu.solvers.sgd(g.back, momentum=0.9, nesterov="no"),
    "adam with one beta": lambda g: pu.solvers.adam(g.back, betas=(0.9,)),
    "adam with betas a number": lambda g: pu.solvers.adam(g.back, betas=0.9),
    "adam with a beta of 1": lambda g: pu.solvers.adam(g.back, betas=(0.9, 1.0)),
    "adam with eps a text": lambda g: pu.solvers.adam(g.back, eps="1e-8"),
    "adamw with momentum": lambda g: pu.solvers.adamw(g.back, momentum=0.9),
    "rmsprop with alpha 2": lambda g: pu.solvers.rmsprop(g.back, alpha=2.0),
    "adadelta with rho None": lambda g: pu.solvers.adadelta(g.back, rho=None),
    "lars with trust a text": lambda g: pu.solvers.lars(g.back, trust="1"),
    "accumulate None": lambda g: pu.parallel.accumulate(None, 2),
    "accumulate 0 times": lambda g: pu.parallel.accumulate(g.back, 0),
    "accumulate 1.5 times": lambda g: pu.parallel.accumulate(g.back, 1.5),
    "clip None": lambda g: pu.solvers.clip_by_norm(None, 1.0),
    "clip to 0": lambda g: pu.solvers.clip_by_norm(g.back, 0.0),
    "clip to a text": lambda g: pu.solvers.clip_by_norm(g.back, "1"),
    "clip without gradients": lambda g: pu.solvers.clip_by_norm(g.net, 1.0),
    "a fixed rate of None": lambda g: pu.solvers.Fixed(None),
    "a step rate of a text": lambda g: pu.solvers.Step(0.1, step="10"),
    "steps of a rate in disorder": lambda g: pu.solvers.MultiStep(0.1, steps=(20, 10)),
    "steps of a rate a number": lambda g: pu.solvers.MultiStep(0.1, steps=10),
    "a poly rate of 0": lambda g: pu.solvers.Poly(0.1, max_iterations=0),
    "a cosine of None": lambda g: pu.solvers.Cosine(0.1, max_iterations=None),
    "a warm-up of a number": lambda g: pu.solvers.Warmup(0.1, iterations=3),
    "a rate of another name": lambda g: pu.solvers.parse_rate("stepp", lr=0.1, iterations=10),
    "a rate of None": lambda g: pu.solvers.parse_rate(None, lr=0.1, iterations=10),
    "add_rate to a graph": lambda g: pu.solvers.add_rate(g.net, 0.1),
}

PARALLEL: dict[str, Call] = {
    "compose with a name as solver": lambda g: compose(g, solver="sgd"),
    "compose with None as solver": lambda g: compose(g, solver=None),
    "compose with a solver of nothing": lambda g: compose(g, solver=lambda graph: None),
    "compose None": lambda g: compose(g, net=None),
    "compose a step": lambda g: compose(g, net=g.step),
    "compose without devices": lambda g: compose(g, devices=""),
    "compose for no devices": lambda g: compose(g, devices=[]),
    "compose for a number": lambda g: compose(g, devices=2),
    "compose for None": lambda g: compose(g, devices=None),
    "compose for devices by number": lambda g: compose(g, devices=[0, 1]),
    "compose for another device": lambda g: compose(g, devices="tpu:0-1"),
    "compose for one device twice": lambda g: compose(g, devices="cpu:0,cpu:0"),
    "compose with data 3": lambda g: compose(g, data=3),
    "compose with data a text": lambda g: compose(g, data="two"),
    "compose with data 0": lambda g: compose(g, data=0),
    "compose with an unknown setting": lambda g: compose(g, replicas=2),
    "compose with micro 0": lambda g: compose(g, pipeline=2, micro=0),
    "compose with another schedule": lambda g: compose(g, pipeline=2, schedule="2f2b"),
    "compose with another topology": lambda g: compose(g, topology="star"),
    "compose with a scheme of text": lambda g: compose(g, scheme="data=2"),
    "compose with clip 0": lambda g: compose(g, clip=0.0),
    "compose with clip a text": lambda g: compose(g, clip="1"),
    "compose with accumulate 0": lambda g: compose(g, accumulate=0),
    "compose with accumulate None": lambda g: compose(g, accumulate=None),
    "compose with another precision": lambda g: compose(g, precision="fp8"),
    "compose with recompute 1": lambda g: compose(g, recompute=1),
    "compose with a cut of no layer": lambda g: compose(g, pipeline=2, cut=("none",)),
    "a scheme of another setting": lambda g: pu.parallel.Scheme.parse("dada=2"),
    "a scheme of None": lambda g: pu.parallel.Scheme.parse(None),
    "a scheme of data -1": lambda g: pu.parallel.Scheme(data=-1),
    "a scheme with recompute of a text": lambda g: pu.parallel.Scheme(recompute="fc"),
    "a scheme with a cut of numbers": lambda g: pu.parallel.Scheme(pipeline=2, cut=(1,)),
    "replicate None": lambda g: pu.parallel.replicate(None, "cpu:0-1"),
    "replicate for None": lambda g: pu.parallel.replicate(g.step, None),
    "replicate over a device twice": lambda g: pu.parallel.replicate(g.step, ["cpu:0", "cpu:0"]),
    "replicate over what is no device": lambda g: pu.parallel.replicate(g.step, ["gpu"]),
    "replicate with another topology": lambda g: pu.parallel.replicate(
        g.step, "cpu:0-1", topology="star"
    ),
    "replicate with a bucket of -1": lambda g: pu.parallel.replicate(g.step, "cpu:0-1", bucket=-1),
    "replicate with another batch norm": lambda g: pu.parallel.replicate(
        g.step, "cpu:0-1", batch_norm="all"
    ),
    "a pipeline of None": lambda g: pu.parallel.pipeline(None, devices="cpu:0-1", micro=2),
    "a pipeline of 0 micro-batches": lambda g: pu.parallel.pipeline(
        g.step, devices="cpu:0-1", micro=0
    ),
    "a pipeline of a net": lambda g: pu.parallel.pipeline(g.net, devices="cpu:0-1", micro=2),
    "a pipeline of another schedule": lambda g: pu.parallel.pipeline(
        g.step, devices="cpu:0-1", micro=2, schedule="fifo"
    ),
    "shard None": lambda g: pu.parallel.shard(None, "cpu:0-1"),
    "shard for None": lambda g: pu.parallel.shard(g.net, None),
    "shard a step": lambda g: pu.parallel.shard(g.step, "cpu:0-1"),
    "hybrid None": lambda g: pu.parallel.hybrid(None, "cpu:0-1"),
    "to_device None": lambda g: pu.to_device(g.step, None),
    "to_device of a module": lambda g: pu.to_device(g.module, "cuda:0"),
    "to_device of another name": lambda g: pu.to_device(g.step, "gpu0"),
    "to_device of a number": lambda g: pu.to_device(g.step, 0),
    "place by a list": lambda g: pu.parallel.place(g.net, ["fc"]),
    "place of no layer": lambda g: pu.parallel.place(g.net, {"none": "cpu:1"}),
    "place at None": lambda g: pu.parallel.place(g.net, {"fc": None}),
    "cut_at of a text": lambda g: pu.parallel.cut_at(g.step, "fc"),
    "cut_at of no layer": lambda g: pu.parallel.cut_at(g.step, ["none"]),
    "balanced_cut in 0": lambda g: pu.parallel.balanced_cut(g.step, 0),
    "balanced_cut of None": lambda g: pu.parallel.balanced_cut(None, 2),
    "parse_devices of None": lambda g: pu.parallel.parse_devices(None),
    "parse_devices of a list": lambda g: pu.parallel.parse_devices(["cpu:0"]),
    "parse_devices without end": lambda g: pu.parallel.parse_devices("cpu:0-1000000000"),
    "devices_of None": lambda g: pu.parallel.devices_of(None),
    "insert_copies into None": lambda g: pu.parallel.insert_copies(None),
    "bytes_moved of None": lambda g: pu.parallel.bytes_moved(None),
    "peak_memory of None": lambda g: pu.parallel.peak_memory(None),
    "gather_values of None": lambda g: pu.parallel.gather_values(g.step, None),
    "shard_values of a list": lambda g: pu.parallel.shard_values(g.step, [1]),
    "gpipe of 0 stages": lambda g: pu.parallel.gpipe(0, 4),
    "gpipe of a text": lambda g: pu.parallel.gpipe("2", 4),
    "1f1b of 0 micro-batches": lambda g: pu.parallel.one_f_one_b(2, 0),
    "interleaved of 0 chunks": lambda g: pu.parallel.interleaved(2, 4, 0),
    "zero_bubble of -1": lambda g: pu.parallel.zero_bubble(-1, 4),
    "bubble of None": lambda g: pu.parallel.bubble(None),
    "bubble_formula of another name": lambda g: pu.parallel.bubble_formula("2f2b", 2, 4),
    "a schedule of no grid": lambda g: pu.parallel.Schedule.parse("nothing"),
    "a schedule of None": lambda g: pu.parallel.Schedule.parse(None),
    "times_of_step of None": lambda g: pu.parallel.times_of_step(None, {}),
}

TRANSFORMS: dict[str, Call] = {
    **{
        f"{name} of None": partial(lambda name, g: getattr(pu, name)(None), name)
        for name in ("backward", "check", "evaluation", "fuse", "join", "layout", "mixed", "prune")
    },
    **{
        f"{name} of a module": partial(lambda name, g: getattr(pu, name)(g.module), name)
        for name in ("backward", "check", "evaluation", "fuse", "join", "layout", "mixed", "prune")
    },
    "backward of a step": lambda g: pu.backward(g.step),
    "backward without a loss": lambda g: pu.backward(g.fed),
    "backward with losses a list": lambda g: pu.backward(g.net, losses=["loss"]),
    "backward with a loss of no name": lambda g: pu.backward(g.net, losses={"los": 1.0}),
    "backward with a weight of text": lambda g: pu.backward(g.net, losses={"loss": "1"}),
    "backward with wrt a text": lambda g: pu.backward(g.net, wrt="data"),
    "backward with wrt of no name": lambda g: pu.backward(g.net, wrt=["dta"]),
    "evaluation of no output": lambda g: pu.evaluation(g.net, ["none"]),
    "evaluation of a text": lambda g: pu.evaluation(g.net, "loss"),
    "inference without outputs": lambda g: pu.inference(g.net),
    "inference of None": lambda g: pu.inference(g.net, None),
    "inference of no blob": lambda g: pu.inference(g.net, ["none"]),
    "inference of nothing": lambda g: pu.inference(g.net, []),
    "prune to no blob": lambda g: pu.prune(g.net, ["none"]),
    "prune to a number": lambda g: pu.prune(g.net, 3),
    "mixed of another precision": lambda g: pu.mixed(g.net, "fp8"),
    "mixed of a dtype": lambda g: pu.mixed(g.net, torch.bfloat16),
    "layout of another form": lambda g: pu.layout(g.net, "NHWC"),
    "layout of None": lambda g: pu.layout(g.net, None),
    "fuse for a number": lambda g: pu.fuse(g.step, devices=3),
    "fuse for what is no device": lambda g: pu.fuse(g.step, devices=["gpu"]),
    "recompute None": lambda g: pu.recompute(None, 2),
    "recompute 0 blocks": lambda g: pu.recompute(g.step, 0),
    "recompute half a block": lambda g: pu.recompute(g.step, 0.5),
    "recompute of no block": lambda g: pu.recompute(g.step, ["none"]),
    "with_batch 0": lambda g: pu.with_batch(g.net, 0),
    "with_batch -1": lambda g: pu.with_batch(g.net, -1),
    "with_batch a text": lambda g: pu.with_batch(g.net, "8"),
    "with_batch of a fraction": lambda g: pu.with_batch(g.net, 2.5),
    "with_batch of None": lambda g: pu.with_batch(None, 8),
    "complete None": lambda g: pu.analysis.complete(None),
    "problems of None": lambda g: pu.analysis.problems(None),
    "fill with a text": lambda g: pu.kinds.fill("xavier", (2,), "float32", seed=0, name="x"),
    "fill of another kind": lambda g: pu.kinds.fill(
        Filler("xaver"), (2, 2), "float32", seed=0, name="x"
    ),
    "fill of another dtype": lambda g: pu.kinds.fill(Filler(), (2, 2), "real", seed=0, name="x"),
    "fill of size -1": lambda g: pu.kinds.fill(Filler(), (-2, 2), "float32", seed=0, name="x"),
}

NETS: dict[str, Call] = {
    **{
        f"{name} of batch 0": partial(lambda name, g: pu.zoo.NETS[name](0), name)
        for name in pu.zoo.NETS
    },
    **{
        f"{name} of batch '8'": partial(lambda name, g: pu.zoo.NETS[name]("8"), name)
        for name in pu.zoo.NETS
    },
    "mlp of batch 2.5": lambda g: pu.zoo.mlp(2.5),
    "mlp of batch true": lambda g: pu.zoo.mlp(True),
    "mlp of images of 2 sizes": lambda g: pu.zoo.mlp(image=(28, 28)),
    "mlp of images of a number": lambda g: pu.zoo.mlp(image=28),
    "mlp of images of size 0": lambda g: pu.zoo.mlp(image=(1, 0, 28)),
    "mlp of 0 classes": lambda g: pu.zoo.mlp(classes=0),
    "mlp of classes None": lambda g: pu.zoo.mlp(classes=None),
    "mlp of hidden a number": lambda g: pu.zoo.mlp(hidden=16),
    "mlp of hidden 0": lambda g: pu.zoo.mlp(hidden=(0,)),
    "mlp of hidden texts": lambda g: pu.zoo.mlp(hidden=("16",)),
    "mlp of another option": lambda g: pu.zoo.mlp(hiden=(16,)),
    "lenet of images too small": lambda g: pu.zoo.lenet(2, image=(1, 4, 4)),
    "lenet of classes -1": lambda g: pu.zoo.lenet(2, classes=-1),
    "nin of images too small": lambda g: pu.zoo.nin(2, image=(3, 2, 2)),
    "gpt2 of heads that do not divide": lambda g: pu.zoo.gpt2(2, width=30, heads=4),
    "gpt2 of length 0": lambda g: pu.zoo.gpt2(2, length=0),
    "vit of patches of 0": lambda g: pu.zoo.vit(2, patch=0),
    "a net of another dtype": lambda g: pu.Net(dtype="real"),
    "a net of dtype None": lambda g: pu.Net(dtype=None),
    "an input of no name": lambda g: pu.Net().input(None, (2, 3)),
    "an input of a text": lambda g: pu.Net().input("x", "2x3"),
    "an input of a number": lambda g: pu.Net().input("x", 3),
    "an input of size -1": lambda g: pu.check(_with_input((-1, 3))),
    "an input of size 1.5": lambda g: pu.Net().input("x", (1.5,)),
    "an input of another dtype": lambda g: pu.check(_with_input((2, 3), "real")),
    "data of no size": lambda g: pu.Net().data(()),
    "data of a number ": lambda g: pu.Net().data(8),
    "a source of texts": lambda g: pu.Net().source(["data"]),
    "a source of None": lambda g: pu.Net().source(None),
    "a parameter without a filler": lambda g: pu.Net().parameter("w", (2,)),
    "a parameter with a text as filler": lambda g: pu.Net().parameter("w", (2,), "xavier"),
    "apply of no kind": lambda g: g.w.apply("Reluu", [g.v]),
    "apply to a tensor": lambda g: g.w.apply("Relu", [g.x]),
    "apply to a name": lambda g: g.w.apply("Relu", ["v"]),
    "apply with another attribute": lambda g: g.w.apply("Relu", [g.v], {"slope": 1}),
    "apply with a tensor as attribute": lambda g: g.w.apply("Relu", [g.v], {"slope": g.x}),
    "apply without inputs": lambda g: g.w.apply("Relu", []),
    "apply to a var of another net": lambda g: pu.Net().apply("Relu", [g.v]),
    "apply on another lane": lambda g: g.w.apply("Relu", [g.v], lane="gpu"),
    "output of a name": lambda g: g.w.output("v"),
    "output of None": lambda g: g.w.output(None),
    "carry None": lambda g: g.w.carry(None, g.v),
    "carry what is no state": lambda g: g.w.carry(g.v, g.v),
}


def _with_input(shape: tuple[int, ...], dtype: str = "float32") -> pu.Graph:
    net = pu.Net()
    net.input("x", shape, dtype)
    return net.graph()


LAYERS: dict[str, Call] = {
    **{
        f"{name} of None": partial(lambda name, g: getattr(pu.kinds, name)(None), name)
        for name in ("relu", "tanh", "gelu", "softmax", "mirror", "batch_norm", "dropout", "lrn")
    },
    **{
        f"{name} of a tensor": partial(lambda name, g: getattr(pu.kinds, name)(g.x), name)
        for name in ("relu6", "sigmoid", "elu", "leaky_relu", "flatten", "layer_norm", "bias")
    },
    "relu named by a number": lambda g: pu.kinds.relu(g.v, name=3),
    "relu named by a space": lambda g: pu.check(_named("a b")),
    "gelu of another form": lambda g: pu.kinds.gelu(g.v, approximate="fast"),
    "leaky_relu of a text": lambda g: pu.kinds.leaky_relu(g.v, slope="0.1"),
    "conv without a kernel": lambda g: pu.kinds.conv(g.v, 4),
    "conv of kernel 0": lambda g: pu.kinds.conv(g.v, 4, kernel=0),
    "conv of kernel a text": lambda g: pu.kinds.conv(g.v, 4, kernel="3"),
    "conv of kernel too large": lambda g: pu.kinds.conv(g.v, 4, kernel=99),
    "conv of 0 channels": lambda g: pu.kinds.conv(g.v, 0, kernel=3),
    "conv of -1 channels": lambda g: pu.kinds.conv(g.v, -1, kernel=3),
    "conv of stride 0": lambda g: pu.kinds.conv(g.v, 4, kernel=3, stride=0),
    "conv of groups that do not divide": lambda g: pu.kinds.conv(g.v, 4, kernel=3, groups=2),
    "conv of 0 groups": lambda g: pu.kinds.conv(g.v, 4, kernel=3, groups=0),
    "conv of vectors": lambda g: pu.kinds.conv(g.f, 4, kernel=3),
    "conv with a text as filler": lambda g: pu.kinds.conv(g.v, 4, kernel=3, weight_filler="xavier"),
    "deconv of kernel 0": lambda g: pu.kinds.deconv(g.v, 4, kernel=0),
    "deconv of vectors": lambda g: pu.kinds.deconv(g.f, 4, kernel=2),
    "pool of kernel 0": lambda g: pu.kinds.pool(g.v, kernel=0),
    "pool of another method": lambda g: pu.kinds.pool(g.v, kernel=2, method="min"),
    "pool of vectors": lambda g: pu.kinds.pool(g.f, kernel=2),
    "pool of stride 0": lambda g: pu.kinds.pool(g.v, kernel=2, stride=0),
    "global_pool of vectors": lambda g: pu.kinds.global_pool(g.f),
    "inner_product of 0": lambda g: pu.kinds.inner_product(g.v, 0),
    "inner_product of a text": lambda g: pu.kinds.inner_product(g.v, "10"),
    "inner_product of None": lambda g: pu.kinds.inner_product(None, 10),
    "embedding of floats": lambda g: pu.kinds.embedding(g.f, 10, 4),
    "embedding of 0 words": lambda g: pu.kinds.embedding(g.f, 0, 4),
    "dropout of 1": lambda g: pu.kinds.dropout(g.v, ratio=1.0),
    "dropout of a text": lambda g: pu.kinds.dropout(g.v, ratio="0.5"),
    "dropout of NaN": lambda g: pu.kinds.dropout(g.v, ratio=float("nan")),
    "batch_norm of a text": lambda g: pu.kinds.batch_norm(g.v, eps="1e-5"),
    "concat of one var": lambda g: pu.kinds.concat(g.v),
    "concat of nothing": lambda g: pu.kinds.concat([]),
    "concat of other shapes": lambda g: pu.kinds.concat([g.v, g.f]),
    "concat along a text": lambda g: pu.kinds.concat([g.v, g.v], axis="1"),
    "concat along axis 9": lambda g: pu.kinds.concat([g.v, g.v], axis=9),
    "eltwise of nothing": lambda g: pu.kinds.eltwise([]),
    "eltwise of one": lambda g: pu.kinds.eltwise(g.v),
    "eltwise of another operation": lambda g: pu.kinds.eltwise([g.v, g.v], operation="mean"),
    "eltwise of other shapes": lambda g: pu.kinds.eltwise([g.v, g.f]),
    "split in 0": lambda g: pu.kinds.split(g.f, 0),
    "split that does not divide": lambda g: pu.kinds.split(g.f, 4),
    "slice behind the end": lambda g: pu.kinds.slice(g.f, 4, 99),
    "reshape to another size": lambda g: pu.kinds.reshape(g.f, (7, 7)),
    "reshape to a text": lambda g: pu.kinds.reshape(g.f, "7x7"),
    "transpose by two axes of four": lambda g: pu.kinds.transpose(g.v, (0, 1)),
    "transpose by a number": lambda g: pu.kinds.transpose(g.v, 1),
    "flatten behind the last axis": lambda g: pu.kinds.flatten(g.f, axis=7),
    "prepend to vectors": lambda g: pu.kinds.prepend(g.f, 1),
    "batch_norm of numbers": lambda g: pu.kinds.batch_norm(g.one),
    "conv of numbers": lambda g: pu.kinds.conv(g.one, 4, kernel=3),
    "layer_norm of 0 dimensions": lambda g: pu.kinds.layer_norm(g.f, dims=0),
    "layer_norm of 9 dimensions": lambda g: pu.kinds.layer_norm(g.f, dims=9),
    "inner_product from axis 9": lambda g: pu.kinds.inner_product(g.f, 3, axis=9),
    "scale along axis 9": lambda g: pu.kinds.scale(g.f, axis=9),
    "scale of a tensor": lambda g: pu.kinds.scale(g.f, g.x),
    "pool of half a kernel": lambda g: pu.kinds.pool(g.v, kernel=1.5),
    "softmax along axis 9": lambda g: pu.kinds.softmax(g.f, axis=9),
    "accuracy without labels": lambda g: pu.kinds.accuracy(g.f),
    "lrn of size 0": lambda g: pu.kinds.lrn(g.v, size=0),
    "crop of size 0": lambda g: pu.kinds.crop(g.v, size=0),
    "center_crop too large": lambda g: pu.kinds.center_crop(g.v, size=99),
    "normalize by a text": lambda g: pu.kinds.normalize(g.v, scale="1"),
    "attention of None": lambda g: pu.kinds.attention(None, heads=2),
    "attention of heads that do not divide": lambda g: pu.kinds.attention(g.f, heads=4),
    "softmax_loss without labels": lambda g: pu.kinds.softmax_loss(g.f),
    "softmax_loss of float labels": lambda g: pu.kinds.softmax_loss(g.f, g.f),
    "softmax_loss with a tensor": lambda g: pu.kinds.softmax_loss(g.f, g.y),
    "euclidean_loss of two shapes": lambda g: pu.kinds.euclidean_loss(g.f, g.v),
    "hinge_loss of None": lambda g: pu.kinds.hinge_loss(g.f, None),
    "sigmoid_cross_entropy_loss of None": lambda g: pu.kinds.sigmoid_cross_entropy_loss(g.f, None),
    "accuracy of the top 0": lambda g: pu.kinds.accuracy(g.f, g.f, top=0),
    "kind of a number": lambda g: kind(3),
    "kind of None by name": lambda g: kind("Swish"),
    "kind of a lambda": lambda g: kind(lambda x: x),
    "kind of a class": lambda g: kind(Holder),
    "kind of a taken name": lambda g: kind(Relu),
    "kind without an annotation": lambda g: kind(unnamed),
    "kind with any attributes": lambda g: kind(open_ended),
    "kind with an annotation of nothing": lambda g: kind(misspelt),
    "kind with another option": lambda g: kind(gradient=Relu),
    "kind with variants a text": lambda g: kind(variants="0"),
}


def _named(name: str) -> pu.Graph:
    net = pu.Net()
    pu.kinds.relu(net.input("x", (2,)), name=name)
    return net.graph()


IMPORTS: dict[str, Call] = {
    "from_torch of None": lambda g: pu.from_torch(None, g.entropy, g.example),
    "from_torch of a class": lambda g: pu.from_torch(nn.Linear, g.entropy, g.example),
    "from_torch of a function": lambda g: pu.from_torch(torch.relu, g.entropy, g.example),
    "from_torch of a lazy module": lambda g: pu.from_torch(lazily(), g.entropy, g.example),
    "from_torch without an example": lambda g: pu.from_torch(g.module, g.entropy),
    "from_torch of an example None": lambda g: pu.from_torch(g.module, g.entropy, None),
    "from_torch of an empty example": lambda g: pu.from_torch(g.module, g.entropy, ()),
    "from_torch of a text": lambda g: pu.from_torch(g.module, g.entropy, ("a", "b")),
    "from_torch of one tensor": lambda g: pu.from_torch(g.module, g.entropy, g.x),
    "from_torch of arrays": lambda g: pu.from_torch(
        g.module, g.entropy, (g.x.numpy(), g.y.numpy())
    ),
    "from_torch of two batch sizes": lambda g: pu.from_torch(
        g.module, g.entropy, (g.x[:4], g.y[:3])
    ),
    "from_torch of another width": lambda g: pu.from_torch(
        g.module, g.entropy, (g.x[:4, :5], g.y[:4])
    ),
    "from_torch with a text as loss": lambda g: pu.from_torch(g.module, "mse", g.example),
    "from_torch with None as loss": lambda g: pu.from_torch(g.module, None, g.example),
    "from_torch with a class as loss": lambda g: pu.from_torch(
        g.module, nn.CrossEntropyLoss, g.example
    ),
    "from_torch with a loss of a vector": lambda g: pu.from_torch(
        g.module, partial(g.entropy, reduction="none"), g.example
    ),
    "from_torch with a loss of a text": lambda g: pu.from_torch(
        g.module, lambda out, label: "loss", g.example
    ),
    "from_torch of no tensor": lambda g: pu.from_torch(Holder(), g.entropy, g.example),
    "from_torch with inputs a text": lambda g: pu.from_torch(
        g.module, g.entropy, g.example, inputs="data"
    ),
    "from_torch with inputs too many": lambda g: pu.from_torch(
        g.module, g.entropy, g.example, inputs=["a", "b"]
    ),
    "from_torch with targets a number": lambda g: pu.from_torch(
        g.module, g.entropy, g.example, targets=1
    ),
    "state_dict of None": lambda g: g.imported.state_dict(None),
    "state_dict of another run": lambda g: pu.from_torch(
        nn.Sequential(nn.Identity(), nn.Linear(8, 3)), g.entropy, g.example
    ).state_dict(g.run),
    "to_torch of None": lambda g: g.imported.to_torch(None, g.module),
    "to_torch into None": lambda g: g.imported.to_torch(g.run, None),
    "to_torch into another module": lambda g: _to_torch(g, nn.Linear(8, 4)),
    "from_caffe None": lambda g: pu.from_caffe(None),
    "from_caffe of no file": lambda g: pu.from_caffe("none.prototxt"),
    "from_caffe of a folder": lambda g: pu.from_caffe(g.folder),
    "from_caffe of batch 0": lambda g: pu.from_caffe(g.definition, batch=0),
    "from_caffe of batch a text": lambda g: pu.from_caffe(g.definition, batch="8"),
    "from_caffe of image a text": lambda g: pu.from_caffe(g.definition, image="3x8x8"),
    "from_caffe of image a number": lambda g: pu.from_caffe(g.definition, image=3),
    "from_caffe of crop a text": lambda g: pu.from_caffe(g.definition, crop="3"),
    "from_caffe of shapes a list": lambda g: pu.from_caffe(g.definition, shapes=[3]),
    "from_caffe of another dtype": lambda g: pu.from_caffe(g.definition, dtype="real"),
    "from_caffe of no weights": lambda g: pu.from_caffe(g.definition, weights="none.caffemodel"),
    "from_caffe of weights a number": lambda g: pu.from_caffe(g.definition, weights=3),
    "from_caffe of no solver": lambda g: pu.from_caffe(g.definition, solver="none.prototxt"),
    "the data of an Input layer": lambda g: g.brought.data(),
    "the data text of an Input layer": lambda g: g.brought.data_text(),
    "prepared for None": lambda g: g.brought.prepared(None),
    "prepared for tensors": lambda g: g.brought.prepared((g.x, g.y)),
    "to_caffe of None": lambda g: g.brought.to_caffe(None, g.folder / "w.caffemodel"),
    "to_caffe of another run": lambda g: g.brought.to_caffe(g.run, g.folder / "w.caffemodel"),
    "to_caffe to None": lambda g: g.brought.to_caffe(g.run, None),
    "a Caffe solver of None": lambda g: from_caffe_solver(None),
    "a Caffe solver of no file": lambda g: from_caffe_solver("none.prototxt"),
    "a Caffe solver of a net": lambda g: from_caffe_solver(g.definition),
    "a Caffe solver for None": lambda g: _caffe_solver(g)(None),
    "a Caffe solver for a net": lambda g: _caffe_solver(g)(g.net),
}


def _caffe_solver(g: Any) -> Any:
    path: Path = g.folder / "solver.prototxt"
    path.write_text('base_lr: 0.1 lr_policy: "fixed"')
    return from_caffe_solver(path)


def _to_torch(g: Any, module: nn.Module) -> None:
    step = pu.solvers.sgd(pu.backward(g.imported.net))
    with pu.Run(step, data=g.data) as run:
        g.imported.to_torch(run, module)


GRAPHS: dict[str, Call] = {
    "a location of None": lambda g: pu.Location(device=None),
    "a location of a number": lambda g: pu.Location(device=0),
    "a location of another device": lambda g: pu.Location(device="gpu"),
    "a blob of no name": lambda g: pu.check(pu.Graph({None: pu.Blob(None, (2,))})),
    "a blob of a text": lambda g: pu.Blob("x", "2x3"),
    "a blob of fractions": lambda g: pu.check(pu.Graph({"x": pu.Blob("x", (2.5,))})),
    "a blob of another dtype": lambda g: pu.check(pu.Graph({"x": pu.Blob("x", (2,), "real")})),
    "a blob of a dtype": lambda g: pu.Blob("x", (2,), torch.float32),
    "an op on another lane": lambda g: pu.Op("y", "Relu", ("x",), ("y",), lane="gpu"),
    "an op with a tensor": lambda g: pu.Op("y", "Relu", ("x",), ("y",), {"a": g.x}),
    "an op with a list of attributes": lambda g: pu.Op("y", "Relu", ("x",), ("y",), ["a"]),
    "an op with an input of text": lambda g: pu.Op("y", "Relu", "x", ("y",)),
    "a state of None": lambda g: pu.State(None, "x"),
    "a state with a text as filler": lambda g: pu.State("x", "x", "xavier"),
    "a filler of a number": lambda g: Filler(3),
    "a builder of a module": lambda g: pu.Builder(g.module),
    "a builder of a blob twice": lambda g: _twice(),
    "a builder given a number": lambda g: pu.Builder().add(3),
    "a builder with a blob of a text": lambda g: pu.Builder().blob("x", "2x3"),
    "a builder with an op of texts": lambda g: pu.Builder().op("y", "Relu", "x", "y"),
    "a builder with a state of text": lambda g: pu.Builder().state("x", filler="xavier"),
    "verify None": lambda g: pu.graph.verify(None),
    "to_yaml None": lambda g: pu.graph.to_yaml(None),
    "from_yaml None": lambda g: pu.graph.from_yaml(None),
    "from_yaml of a mapping": lambda g: pu.graph.from_yaml("a: 1"),
    "load_yaml of no file": lambda g: pu.graph.load_yaml("none.yaml"),
    "load_yaml None": lambda g: pu.graph.load_yaml(None),
    "save_yaml of None": lambda g: pu.graph.save_yaml(None, g.folder / "x.yaml"),
    "save_yaml to None": lambda g: pu.graph.save_yaml(g.net, None),
    "save_yaml into no folder": lambda g: pu.graph.save_yaml(g.net, g.folder / "no" / "x.yaml"),
    "to_dot None": lambda g: pu.graph.to_dot(None),
    "to_model_explorer None": lambda g: pu.graph.to_model_explorer(None),
    "to_text None": lambda g: pu.graph.to_text(None),
    "the trace saved to None": lambda g: g.run.trace.save(None),
    "a check of an op without blobs": lambda g: pu.check(
        pu.Graph(ops={"y": pu.Op("y", "Relu", ("x",), ("y",))})
    ),
}


def _twice() -> None:
    builder = pu.Builder()
    builder.blob("x", (2,))
    builder.blob("x", (2,))


TABLES = (RUNS, DATA, SOLVERS, PARALLEL, TRANSFORMS, NETS, LAYERS, IMPORTS, GRAPHS)
CALLS: dict[str, Call] = {name: call for table in TABLES for name, call in table.items()}


def test_no_row_hides_another() -> None:
    assert len(CALLS) == sum(map(len, TABLES)) >= 200


@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls(g: SimpleNamespace, name: str) -> None:
    with pytest.raises(PurineError) as caught:
        CALLS[name](g)
    error = caught.value
    assert error.what
    assert error.expected
    assert error.found
    assert error.remedy
