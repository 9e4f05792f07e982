"""Tells whether a change of the code changes any number: trains small jobs and compares hashes.

    python scripts/same_numbers.py record before.json     # on the tree before the change
    python scripts/same_numbers.py compare before.json    # after it; exit code 1: a job differs

Each job trains on the CPU, 20 iterations unless its line says otherwise. Its hash covers the name,
dtype, shape and bytes of every state at the end, and every number that the iterations reported.
Bits depend on the processor and on the version of torch, so record and compare on one machine.

Modules may move between the two trees: the script uses `purine.cli.main`, the names of `purine`
itself and those of its public packages, and it reads checkpoints with safetensors. `--tree` names
a checkout other than the script's own.
"""

from __future__ import annotations

import os

# Sums depend on the number of threads, and torch reads these settings when it is imported.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

import argparse
import contextlib
import fnmatch
import hashlib
import importlib
import io
import json
import math
import platform
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

pu: Any = None
"""The package `purine`, which `main` imports when it knows the tree."""

STEPS = 20
SEED = 7
TREE = Path(__file__).resolve().parent.parent

Graph = Any  # of `pu`


@dataclass(frozen=True)
class Outcome:
    """The states at the end of a job, and what each of its iterations reported."""

    states: Mapping[str, Tensor]
    reports: list[dict[str, float]]


def public(package: str, name: str, *, before: str) -> Any:
    """A public function that has moved, wherever the tree has it."""
    for home in (package, before):
        function = getattr(getattr(pu, home) if home else pu, name, None)
        if callable(function):
            return function
    raise AttributeError(f"purine has no function {name}")


Train = Callable[[Path], Outcome]
"""Trains a job, in an empty folder, and returns its outcome."""


def by_command(folder: Path, *options: str, run: str = "run") -> Outcome:
    """Train with the command line, in this process, and read the run's folder."""
    out, printed, code = folder / run, io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            pu.cli.main(["train", *options, "--out", str(out)])
        except SystemExit as end:
            code = end.code
    if code:
        raise RuntimeError(f"purine train {' '.join(options)} gave {code}:\n{printed.getvalue()}")
    checkpoint = max((out / "checkpoints").glob("[0-9]*"))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Outcome(
        load_file(checkpoint / "states.safetensors"),
        [{key: row[key] for key in row if "second" not in key} for row in rows],
    )


def by_run(
    step: Graph, data: Any, *, values: Mapping[str, Tensor] | None = None, **options: Any
) -> Outcome:
    """Train a step with `purine.Run`."""
    with pu.Run(step, data=data, seed=SEED, threads=1, share_cores=True, **options) as run:
        if values:
            run.set_states(values)
        reports = [
            {name: float(value) for name, value in result.outputs.items() if value.numel() == 1}
            for result in run.steps(STEPS)
        ]
        return Outcome(run.states(), reports)


IMAGES = "synthetic:image=1x28x28,classes=10,count=160"
COLOURS = "synthetic:image=3x32x32,classes=10,count=160"
COMMON = ("--threads", "1", "--seed", str(SEED), "--log-every", "1")
SHORT = (*COMMON, "--iters", str(STEPS), "--test-every", str(STEPS))


def command(net: str, *options: str, data: str = IMAGES, batch: int = 16) -> Train:
    """A job of the command line; an option that is given again replaces the one before."""
    basic = ("--net", net, "--data", data, "--batch", str(batch), *SHORT)
    return lambda folder: by_command(folder, *basic, *options)


def on_devices(count: int, scheme: str) -> tuple[str, ...]:
    """The options for a scheme of parallelism over `count` devices that share the cores."""
    return ("--devices", f"cpu:0-{count - 1}", "--parallel", scheme, "--share-cores")


def zoo_jobs() -> Iterator[tuple[str, Train]]:
    """Every net of the zoo: small ones as they are, large ones with few filters."""
    yield "mlp", command("mlp")
    yield "lenet", command("lenet", data="fashion-mini")
    yield "nin", command("nin", data=COLOURS, batch=4)
    image = (3, 67, 67)
    sizes: dict[str, dict[str, Any]] = {
        "alexnet": {"image": image, "width": 12, "hidden": 32},
        "densenet121": {"image": (3, 32, 32), "growth": 4, "layers": (2, 2, 2, 2)},
        "googlenet": {"image": image, "width": 8, "hidden": 16},
        "googlenet-bn": {"image": image, "width": 8, "hidden": 16, "batch_norm": True},
        "mobilenet_v2": {"image": (3, 32, 32), "multiplier": 0.25},
        "resnet50": {"image": (3, 32, 32), "width": 4, "layers": (1, 2, 1, 1)},
        "vgg16": {"image": (3, 32, 32), "width": 4, "hidden": 16},
        "vit": {"image": (3, 32, 32), "patch": 8, "layers": 2, "heads": 2, "width": 16}
        | {"hidden": 32, "dropout": 0.1},
    }
    for name, options in sizes.items():
        yield name, partial(_zoo_images, name.removesuffix("-bn"), options)
    yield "unet", _unet
    yield "gpt2", _gpt2


def _zoo_images(name: str, options: dict[str, Any], folder: Path) -> Outcome:
    data = pu.data.synthetic_images(options["image"], classes=5, count=40)
    return by_run(_sgd(pu.zoo.NETS[name](4, classes=5, **options)), data)


def _unet(folder: Path) -> Outcome:
    net = pu.zoo.unet(2, image=(3, 32, 32), classes=3, width=4, layers=3)
    return by_run(_sgd(net), pu.data.synthetic_masks((3, 32, 32), classes=3, count=20))


def _gpt2(folder: Path) -> Outcome:
    return by_run(_sgd(_small_gpt2()), _token_data())


def _small_gpt2() -> Graph:
    return pu.zoo.gpt2(4, context=12, vocabulary=30, layers=2, heads=2, width=16)


def _token_data() -> Any:
    return pu.data.synthetic_tokens(12, vocabulary=30, count=40)


def _sgd(net: Graph) -> Graph:
    return pu.solvers.sgd(pu.backward(net), lr=0.01, momentum=0.9, weight_decay=5e-4)


def solver_jobs() -> Iterator[tuple[str, Train]]:
    """Every solver, with clipping, weight decay and gradient accumulation."""
    for solver in ("sgd", "adam", "adamw", "adagrad", "adadelta", "rmsprop", "lars"):
        decay = ("--weight-decay", "0.01")
        yield solver, command("lenet", "--solver", solver, *decay, data="fashion-mini")
    yield "sgd-plain", command("mlp", "--momentum", "0", "--weight-decay", "0")
    for name in ("nesterov", "lr_in_momentum"):
        yield f"sgd-{name}", partial(_sgd_option, name)
    yield "clip", command("lenet", "--clip", "0.5", data="fashion-mini")
    yield "accumulate", command("lenet", "--accumulate", "3", data="fashion-mini")
    yield (
        "accumulate-clip-adam",
        command(
            "lenet",
            *("--accumulate", "2", "--clip", "0.5", "--solver", "adam"),
            data="fashion-mini",
        ),
    )
    yield "accumulate-apart", _accumulate_apart


def _sgd_option(option: str, folder: Path) -> Outcome:
    rate = pu.solvers.Step(0.05, step=5, gamma=0.5)
    step = pu.backward(pu.zoo.mlp(8, hidden=(16,)))
    step = pu.solvers.sgd(step, lr=rate, momentum=0.9, weight_decay=1e-3, **{option: True})
    return by_run(step, _grey_images())


def _accumulate_apart(folder: Path) -> Outcome:
    step = public("parallel", "accumulate", before="solvers")(
        pu.backward(pu.zoo.mlp(8, hidden=(16,))), 2, together=False
    )
    return by_run(pu.solvers.adam(step), _grey_images())


def _grey_images() -> Any:
    return pu.data.synthetic_images((1, 28, 28), classes=10, count=80)


def rate_jobs() -> Iterator[tuple[str, Train]]:
    """Every learning-rate policy."""
    policies = {
        "step": "step:step=6,gamma=0.5",
        "multistep": "multistep:steps=5|12",
        "exp": "exp:gamma=0.95",
        "inv": "inv:gamma=0.1,power=0.75",
        "poly": "poly:power=2",
        "cosine-warmup": "cosine:warmup=5",
        "sigmoid": "sigmoid:gamma=-0.5,step=10",
    }
    for name, policy in policies.items():
        yield name, command("mlp", "--lr-policy", policy)


def data_jobs() -> Iterator[tuple[str, Train]]:
    """Sources, the order of samples, and what is done to images."""
    changes = ("--mean", "30", "--scale", "0.01", "--pad", "2", "--crop", "24", "--mirror")
    yield "crop-mirror-pad", command("lenet", *changes, data="fashion-mini")
    yield "npz", _npz
    yield (
        "epochs",
        lambda folder: by_command(
            folder, "--net", "mlp", "--data", IMAGES, "--batch", "24", "--epochs", "3", *COMMON
        ),
    )
    yield "trace", command("lenet", "--trace")
    yield "prefetch", command("mlp", "--prefetch", "4", "--seed", "123")


def _npz(folder: Path) -> Outcome:
    draw = np.random.default_rng(SEED)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 60), ("test", 20)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (count, 3, 20, 20), dtype=np.uint8)
        arrays[f"y_{part}"] = draw.integers(0, 6, count)
    np.savez(folder / "data.npz", **arrays)
    return command("lenet", "--mean", "120,110,100", data=str(folder / "data.npz"))(folder)


def scheme_jobs() -> Iterator[tuple[str, Train]]:
    """Every scheme of parallelism, alone and together with others."""
    schemes = {
        **{
            f"data-{topology}": (4, f"data=4,topology={topology}")
            for topology in ("sharded", "server", "tree", "ring", "native")
        },
        "data-buckets": (2, "data=2,bucket=0"),
        "data-recompute": (2, "data=2,recompute=3"),
        "model": (2, "model=2"),
        "hybrid": (2, "model=2,hybrid=true"),
        "data-hybrid": (4, "data=2,model=2,hybrid=true"),
        "pipeline-gpipe": (2, "pipeline=2,schedule=gpipe"),
        "pipeline-1f1b": (2, "pipeline=2,micro=8,schedule=1f1b"),
        "pipeline-interleaved": (2, "pipeline=2,schedule=interleaved,chunks=2"),
        "pipeline-zero-bubble": (2, "pipeline=2,schedule=zero-bubble"),
        "pipeline-cut": (2, "pipeline=2,cut=fc1"),
        "pipeline-recompute": (2, "pipeline=2,recompute=conv1|pool1"),
        "data-pipeline": (4, "data=2,pipeline=2"),
        "data-model": (4, "data=2,model=2"),
        "pipeline-model": (4, "pipeline=2,model=2"),
        "data-pipeline-model": (8, "data=2,pipeline=2,model=2"),
    }
    for name, (count, scheme) in schemes.items():
        yield name, command("lenet", *on_devices(count, scheme), "--clip", "2", batch=32)
    yield (
        "data-accumulate-adam",
        command("lenet", *on_devices(2, "data=2"), "--accumulate", "2", "--solver", "adam"),
    )
    for kind in ("replica", "synchronised"):
        yield f"data-batch_norm-{kind}", partial(_composed_resnet, {"data": 2, "batch_norm": kind})
    yield "pipeline-resnet50", partial(_composed_resnet, {"pipeline": 2, "micro": 2})
    for name, settings in {
        "data": {"data": 2},
        "model": {"model": 2},
        "data-pipeline": {"data": 2, "pipeline": 2, "micro": 2},
    }.items():
        yield f"{name}-gpt2", partial(_composed_gpt2, settings)
    yield "place", _placed
    yield "place_at_cut", _placed_at_cut
    yield "shard-by-rows", _sharded
    yield "recompute", _recomputed
    yield "grid", _grid
    yield "uneven-replicas", _uneven


def _composed(net: Graph, settings: dict[str, Any], data: Any, **options: Any) -> Outcome:
    count = math.prod(settings.get(name, 1) for name in ("data", "pipeline", "model"))
    solver = partial(pu.solvers.sgd, lr=0.01, momentum=0.9)
    step = public("", "compose", before="parallel")(
        net, solver=solver, devices=f"cpu:0-{count - 1}", **settings
    )
    return by_run(step, data, **options)


def _composed_resnet(settings: dict[str, Any], folder: Path) -> Outcome:
    return _composed(_small_resnet(), settings, _colour_images())


def _small_resnet() -> Graph:
    return pu.zoo.resnet50(8, image=(3, 32, 32), classes=5, width=4, layers=(1, 1))


def _colour_images() -> Any:
    return pu.data.synthetic_images((3, 32, 32), classes=5, count=40)


def _composed_gpt2(settings: dict[str, Any], folder: Path) -> Outcome:
    return _composed(_small_gpt2(), settings, _token_data())


def _placed(folder: Path) -> Outcome:
    net = pu.parallel.place(pu.zoo.lenet(8), {"conv2": "cpu:1", "fc*": "cpu:2", "loss": "cpu:0"})
    return by_run(_sgd(pu.parallel.insert_copies(net)), _grey_images())


def _placed_at_cut(folder: Path) -> Outcome:
    net = pu.parallel.place_at_cut(pu.zoo.lenet(8), ["conv2", "fc1"], "cpu:0-2")
    return by_run(_sgd(pu.parallel.insert_copies(net)), _grey_images())


def _sharded(folder: Path) -> Outcome:
    net = pu.parallel.shard(pu.zoo.mlp(8, hidden=(17, 9)), "cpu:0-2", by={"fc2": "rows"})
    return by_run(_sgd(net), _grey_images())


def _recomputed(folder: Path) -> Outcome:
    return by_run(pu.recompute(_sgd(_small_resnet()), "stage*/block*"), _colour_images())


def _grid(folder: Path) -> Outcome:
    schedule = folder / "schedule.txt"
    schedule.write_text("0: F0 F1 B0 B1\n1: F0 F1 B0 B1\n")
    return command("lenet", *on_devices(2, f"pipeline=2,cut=fc1,schedule={schedule}"))(folder)


def _uneven(folder: Path) -> Outcome:
    steps = [_sgd(pu.zoo.mlp(batch, hidden=(16,))) for batch in (10, 6)]
    return by_run(pu.parallel.replicate(steps, "cpu:0-1"), _grey_images())


def precision_jobs() -> Iterator[tuple[str, Train]]:
    """Low precision, layouts, fused and compiled steps, joined convolutions."""
    for precision in ("bf16", "fp16"):
        yield precision, command("lenet", "--precision", precision)
        yield (
            f"{precision}-data",
            command("lenet", "--precision", precision, *on_devices(2, "data=2"), "--clip", "1"),
        )
        yield f"{precision}-gpt2", partial(_mixed, precision, True, {})
    yield (
        "fp16-adam-accumulate",
        command("lenet", "--precision", "fp16", "--solver", "adam", "--accumulate", "2"),
    )
    yield (
        "fp16-overflow",
        partial(_mixed, "fp16", False, {"loss_scale": 2.0**30}),
    )
    yield "bf16-loss_scale", partial(_mixed, "bf16", False, {"loss_scale": 128.0})
    for form in ("channels-last", "contiguous", "auto"):
        yield f"layout-{form}", command("lenet", "--layout", form)
    yield "compile", command("mlp", "--compile")
    yield "fuse", partial(_fused, {"pieces": 3}, {})
    yield "fuse-data", partial(_fused, {"bucket": 4096}, {"data": 2})
    yield "join", _joined


def _mixed(precision: str, tokens: bool, options: dict[str, Any], folder: Path) -> Outcome:
    net = _small_gpt2() if tokens else _small_resnet()
    data = _token_data() if tokens else _colour_images()
    return by_run(_sgd(pu.mixed(net, precision, **options)), data)


def _fused(options: dict[str, Any], settings: dict[str, Any], folder: Path) -> Outcome:
    net = pu.zoo.lenet(8)
    if settings:
        solver = partial(pu.solvers.sgd, lr=0.01)
        step = public("", "compose", before="parallel")(
            net, solver=solver, devices="cpu:0-1", **settings
        )
    else:
        step = _sgd(net)
    return by_run(pu.fuse(step, **options), _grey_images(), compiled=False)


def _joined(folder: Path) -> Outcome:
    net = pu.zoo.googlenet(4, image=(3, 67, 67), classes=5, width=8, hidden=16)
    data = pu.data.synthetic_images((3, 67, 67), classes=5, count=40)
    return by_run(pu.layout(_sgd(pu.join(net)), "channels-last"), data)


def caffe_jobs() -> Iterator[tuple[str, Train]]:
    """Definitions of Caffe: solvers as jobs of the command line, and imported nets."""
    for name, data, options in (
        ("lenet", "fashion-mini", ()),
        ("lenet-data", "fashion-mini", on_devices(2, "data=2")),
        ("cifar10_full", COLOURS, ("--mean", "0.5")),
        ("mnist_autoencoder", IMAGES, ()),
        ("inner", IMAGES, ()),
    ):
        solver = f"{name.removesuffix('-data')}_solver"
        yield f"solver-{name}", partial(_caffe_solver, solver, data, options)
    images = {
        "alexnet_train_val": (3, 72, 72),
        "cifar10_full_train_test": (3, 32, 32),
        "densenet_train_val": (3, 40, 40),
        "googlenet_train_val": (3, 70, 70),
        "mnist_autoencoder": (1, 28, 28),
        "nin_imagenet_v1_train_val": (3, 70, 70),
        "siamese_train_test": (2, 28, 28),
        "squeezenet_train_val": (3, 70, 70),
        "vgg16_v1_train_val": (3, 36, 36),
    }
    for name, image in images.items():
        yield name, partial(_caffe_net, name, {"image": image})
    yield (
        "char_lstm",
        partial(_caffe_net, "char_lstm", {"shapes": {"cont": (4,), "input": (4,), "target": (4,)}}),
    )
    # fcn_train is left out: a run cannot feed its Input layers.
    for name in ("face_prelu_train", "odds_and_ends"):
        yield name, partial(_caffe_net, name, {})


def _caffe_file(name: str) -> Path:
    """A sample of the tree, wherever the tests have it."""
    return next((_tree() / "tests").rglob(f"{name}.prototxt"))


def _tree() -> Path:
    return Path(pu.__file__).resolve().parent.parent


def _caffe_solver(name: str, data: str, options: tuple[str, ...], folder: Path) -> Outcome:
    solver = str(_caffe_file(name))
    return by_command(folder, solver, "--data", data, "--batch", "8", *SHORT, *options)


def _caffe_net(name: str, sizes: dict[str, Any], folder: Path) -> Outcome:
    net = pu.from_caffe(_caffe_file(name), **sizes).net
    draw = torch.Generator().manual_seed(SEED)
    columns = []
    for op in net.ops.values():
        for blob in (net.blobs[output] for output in op.outputs if op.kind == "Data"):
            shape = (40, *blob.shape[1:])
            binary = blob.dtype == "int64" or blob.name in ("cont", "sim")
            values = torch.rand(shape, generator=draw)
            columns.append((values.round() if binary else values).to(getattr(torch, blob.dtype)))
    step = pu.solvers.sgd(pu.backward(net), lr=0.001, momentum=0.9, weight_decay=5e-4)
    return by_run(step, pu.data.tensors(*columns) if columns else None)


def torch_jobs() -> Iterator[tuple[str, Train]]:
    """Modules of PyTorch, on one device and on several."""
    modules = {
        "mlp": _torch_mlp,
        "cnn": _torch_cnn,
        "transformer": _torch_transformer,
        "lstm": _torch_lstm,
        "gru": _torch_gru,
        "upsampling": _torch_upsampling,
    }
    for name, make in modules.items():
        yield name, partial(_torch_job, make, {})
        yield f"{name}-data", partial(_torch_job, make, {"data": 2})
    yield "mlp-model", partial(_torch_job, _torch_mlp, {"model": 2})
    yield "cnn-pipeline", partial(_torch_job, _torch_cnn, {"pipeline": 2, "micro": 2})
    yield "cnn-bf16", partial(_torch_job, _torch_cnn, {"precision": "bf16"})


Module = tuple[nn.Module, tuple[int, ...], int]
"""A module, the shape of one of its samples, and its classes."""


def _torch_mlp() -> Module:
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5)), (12,), 5


def _torch_cnn() -> Module:
    body = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    rest = (nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 6 * 6, 5))
    return nn.Sequential(*body, *rest), (3, 12, 12), 5


def _torch_transformer() -> Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(6 * 16, 5)), (6, 16), 5


def _torch_lstm() -> Module:
    return _last_step(nn.LSTM(8, 12, num_layers=2, batch_first=True)), (6, 8), 5


def _torch_gru() -> Module:
    return _last_step(nn.GRU(8, 12, batch_first=True)), (6, 8), 5


def _last_step(recurrent: nn.Module) -> nn.Module:
    """A classifier of the last result of a recurrent layer of 12 units."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.fc = recurrent, nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.recurrent(x)[0][:, -1])

    return Last()


def _torch_upsampling() -> Module:
    down = (nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
    up = (nn.ConvTranspose2d(8, 4, 2, stride=2), nn.GELU(), nn.Upsample(scale_factor=2))
    head = (nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    return nn.Sequential(*down, *up, *head), (3, 12, 12), 5


def _torch_job(make: Callable[[], Module], settings: dict[str, Any], folder: Path) -> Outcome:
    torch.manual_seed(SEED)
    module, shape, classes = make()
    samples, labels = torch.randn(40, *shape), torch.randint(classes, (40,))
    example = (samples[:8], labels[:8])
    imported = pu.from_torch(module, torch.nn.functional.cross_entropy, example)
    data = pu.data.tensors(samples, labels)
    if settings:
        return _composed(imported.net, settings, data, values=imported.values)
    step = pu.solvers.adam(pu.backward(imported.net), lr=0.01)
    return by_run(step, data, values=imported.values)


def resume_jobs() -> Iterator[tuple[str, Train]]:
    """Runs of 10 iterations that are resumed to 20; each has to equal a run without a stop."""
    yield "serial", partial(_resumed, ("--solver", "adam", "--lr-policy", "step:step=8"))
    yield "data-pipeline", partial(_resumed, on_devices(4, "data=2,pipeline=2"))
    yield "fp16", partial(_resumed, ("--precision", "fp16", "--clip", "1"))


def _resumed(options: tuple[str, ...], folder: Path) -> Outcome:
    job = ("--net", "lenet", "--data", IMAGES, "--batch", "16", *COMMON, *options)
    straight = by_command(folder, *job, "--iters", "20", "--test-every", "10", run="straight")
    by_command(folder, *job, "--iters", "10", "--test-every", "10")
    resumed = by_command(folder, "--resume", "--iters", "20")
    if digest(straight) != digest(resumed):
        raise RuntimeError("10 iterations resumed to 20 do not equal 20 without a stop")
    return resumed


GROUPS: dict[str, Callable[[], Iterator[tuple[str, Train]]]] = {
    "zoo": zoo_jobs,
    "solver": solver_jobs,
    "rate": rate_jobs,
    "data": data_jobs,
    "scheme": scheme_jobs,
    "precision": precision_jobs,
    "caffe": caffe_jobs,
    "torch": torch_jobs,
    "resume": resume_jobs,
}


def jobs(pattern: str | None) -> dict[str, Train]:
    """The jobs whose name, such as `zoo/lenet`, matches the pattern."""
    named = {f"{group}/{name}": train for group, make in GROUPS.items() for name, train in make()}
    return {name: train for name, train in named.items() if chosen(name, pattern)}


def chosen(name: str, pattern: str | None) -> bool:
    return pattern is None or pattern in name or fnmatch.fnmatchcase(name, pattern)


def digest(outcome: Outcome) -> str:
    """The hash of every state, by name, and of all that was reported."""
    total = hashlib.sha256()
    for name in sorted(outcome.states):
        value = outcome.states[name].detach().cpu().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    total.update(json.dumps(outcome.reports, sort_keys=True).encode())
    return total.hexdigest()


def loss_of(report: Mapping[str, float]) -> float | None:
    """A number of a report to show: its loss, or the first that is called one."""
    names = [name for name in ("loss", *sorted(report)) if "loss" in name and name in report]
    return report[names[0]] if names else None


def record_of(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The record of a job: its hash, and what helps to tell where another one begins to differ."""
    names = "\n".join(sorted(outcome.states)).encode()
    return {
        "hash": digest(outcome),
        "iterations": max(
            int(row.get("iteration", at)) for at, row in enumerate(outcome.reports, 1)
        ),
        "states": len(outcome.states),
        "names": hashlib.sha256(names).hexdigest()[:16],
        "losses": [loss_of(report) for report in outcome.reports],
        "seconds": round(seconds, 2),
    }


def trained(train: Train) -> dict[str, Any]:
    """Run a job and return its record, or the error that it ended with."""
    begun = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="same_numbers-") as folder:
            torch.manual_seed(SEED)
            return record_of(train(Path(folder)), time.perf_counter() - begun)
    except Exception as error:
        traceback.print_exc()
        return {"error": str(error), "seconds": round(time.perf_counter() - begun, 2)}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Where two records of a job begin to differ, in a few words."""
    if before["names"] != after["names"]:
        return f"names of states ({before['states']} before, {after['states']} now)"
    for at, (one, two) in enumerate(zip(before["losses"], after["losses"], strict=False), 1):
        if one != two and not (one != one and two != two):
            return f"report {at}: loss {one} before, {two} now"
    if len(before["losses"]) != len(after["losses"]):
        return f"{len(before['losses'])} reports before, {len(after['losses'])} now"
    return "values of states, or other numbers than the loss"


def versions() -> dict[str, str]:
    """What the bits depend on besides the code."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }


def record(file: Path, pattern: str | None) -> int:
    """Train the jobs and write their records."""
    records: dict[str, Any] = {}
    selected = jobs(pattern)
    for number, (name, train) in enumerate(selected.items(), 1):
        records[name] = trained(train)
        status = "FAILED" if "error" in records[name] else records[name]["hash"][:12]
        _line(number, len(selected), name, status, records[name])
    failed = [name for name, found in records.items() if "error" in found]
    good = {name: found for name, found in records.items() if name not in failed}
    file.write_text(_text({"versions": versions(), "jobs": good}))
    print(f"{len(good)} jobs recorded in {file}, {len(failed)} failed {' '.join(failed)}".rstrip())
    return 1 if failed or not good else 0


def compare(file: Path, pattern: str | None) -> int:
    """Train the jobs and compare them with a file's records."""
    stored = json.loads(file.read_text())
    for name, version in versions().items():
        if stored["versions"].get(name) != version:
            print(f"note: {name} is {version}; recorded with {stored['versions'].get(name)}")
    before = {name: found for name, found in stored["jobs"].items() if chosen(name, pattern)}
    selected = jobs(pattern)
    counts = dict.fromkeys(("same", "DIFFERENT", "FAILED", "new", "missing"), 0)
    for number, (name, train) in enumerate(selected.items(), 1):
        after, note = trained(train), ""
        if "error" in after:
            status = "FAILED"
        elif name not in before:
            status = "new"
        elif after["hash"] == before[name]["hash"]:
            status = "same"
        else:
            status, note = "DIFFERENT", difference(before[name], after)
        counts[status] += 1
        _line(number, len(selected), name, status, after, note)
    for name in sorted(before.keys() - selected.keys()):
        counts["missing"] += 1
        print(f"{'':9}{name:36} missing")
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    wrong = counts["DIFFERENT"] + counts["FAILED"] + counts["missing"]
    return 1 if wrong or not counts["same"] else 0


def _line(
    number: int, total: int, name: str, status: str, found: Mapping[str, Any], note: str = ""
) -> None:
    steps = found.get("iterations", STEPS)
    told = "" if steps == STEPS else f"  {steps} iterations"
    text = f"{number:3}/{total:<4} {name:36} {status:12} {found['seconds']:6.2f} s{told}  {note}"
    print(text.rstrip(), flush=True)


def _text(content: dict[str, Any]) -> str:
    """JSON with a line for each job."""
    rows = (f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in content["jobs"].items())
    head = json.dumps(content["versions"])
    return f'{{"versions": {head},\n "jobs": {{\n' + ",\n".join(rows) + "\n }}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 all the same (or recorded), 1 a job differs, fails or is missing, "
        "2 a wrong command line",
    )
    parser.add_argument(
        "command",
        choices=("record", "compare", "list"),
        help="record: train the jobs and write FILE; compare: train them and print a table of "
        "job, same / DIFFERENT / new / missing, seconds; list: print the names of the jobs",
    )
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="the records, a JSON file"
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="only jobs whose name has this text or matches this pattern, such as 'zoo/*'",
    )
    parser.add_argument(
        "--tree",
        type=Path,
        default=TREE,
        metavar="DIR",
        help="the checkout whose purine is trained (default: that of the script)",
    )
    given = parser.parse_args()
    if given.command == "list":
        print("\n".join(jobs(given.only)))
        return 0
    if given.file is None:
        parser.error(f"{given.command} needs FILE")
    if given.command == "compare" and not given.file.is_file():
        parser.error(f"there is no file {given.file}; write it with: record {given.file}")
    if not jobs(given.only):
        parser.error(f"no job matches {given.only!r}; see: list")
    sys.path.insert(0, str(given.tree.resolve()))
    warnings.filterwarnings("ignore")  # of torch, while it exports modules
    torch.set_num_threads(1)
    global pu
    pu = importlib.import_module("purine")
    importlib.import_module("purine.cli")
    if _tree() != given.tree.resolve():
        parser.error(f"purine is that of {_tree()}, not of {given.tree}")
    begun = time.perf_counter()
    code = (record if given.command == "record" else compare)(given.file, given.only)
    print(f"purine of {given.tree}, {time.perf_counter() - begun:.0f} s in all")
    return code


if __name__ == "__main__":
    sys.exit(main())
