"""How do asynchronous workers compare with those of MXNet 1.9.1 (`dist_async`)?

Both train LeNet with four workers, the same images, batch, rate, momentum and decay. Purine's
workers are devices of one process, MXNet's are processes beside a server and a scheduler, as its
users start them; each has one thread for kernels. Contenders take turns. Reported are medians over
turns of images/s, and the mean of the test accuracy with its range. The last line is JSON.

MXNet wants numpy below 1.24, so it has an environment of its own:

    python -m venv mxnet && mxnet/bin/pip install "numpy<1.24" mxnet==1.9.1
    python benchmarks/beside_mxnet.py --python mxnet/bin/python --turns 3
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from straggler import DECAY, MOMENTUM, add_options, build

import purine as pu

HERE = Path(__file__).resolve().parent
RIVAL = "mxnet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.set_defaults(contenders=("downpour", "hogwild", "easgd"), batch=64)
    parser.add_argument("--python", type=Path, required=True, help="interpreter with mxnet")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for one turn")
    options = parser.parse_args()
    if not options.python.exists():
        parser.error(f"--python: there is no {options.python}; expected an interpreter with mxnet")
    if options.net != "lenet":
        parser.error(f"--net: expected lenet, found {options.net}")
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_images(options.data, Path(folder) / "images.npz")
        for turn in range(options.turns):
            options.seed = turn
            rows.setdefault(RIVAL, []).append(mxnet(options, Path(folder)))
            for name in options.contenders:
                rows.setdefault(name, []).append(purine(name, options))
            print(f"turn {turn + 1}/{options.turns}", file=sys.stderr, flush=True)
    report(rows, options)


def save_images(data: str, path: Path) -> None:
    """All images, as floats from 0 to 1, and labels in a file for the rival."""
    source = pu.data.open_data(data)
    arrays = {}
    for name, part in (("train", source.train), ("test", source.test)):
        assert part is not None
        images, labels = part.batch(np.arange(len(part)))
        arrays[f"{name}_images"] = images.numpy().astype(np.float32) / 255
        arrays[f"{name}_labels"] = labels.numpy().astype(np.float32)
    np.savez(path, **arrays)


def purine(name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Images/s and accuracy of one of our schemes."""
    contender = build(name, options)
    images = options.epochs * len(pu.data.open_data(options.data).train)
    with contender.run:
        return images / contender.train(images), contender.accuracy()


def mxnet(options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Images/s and accuracy of MXNet, with a rate that moves as far as ours for equal images."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = folder / "figures.json"
    result.unlink(missing_ok=True)
    words = {
        "batch": options.batch // options.devices,
        "epochs": options.epochs,
        "lr": options.lr / options.devices,
        "momentum": MOMENTUM,
        "decay": DECAY,
        "seed": options.seed,
        "result": result,
    }
    command = [str(options.python), str(HERE / "rival_mxnet.py"), str(folder / "images.npz")]
    for word, value in words.items():
        command += [f"--{word}", str(value)]
    shared = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_INTERFACE": "lo",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(options.devices),
        "OMP_NUM_THREADS": "1",
        "MXNET_CPU_WORKER_NTHREADS": "1",
    }
    roles = ("scheduler", "server", *("worker",) * options.devices)
    started = []
    try:
        for role in roles:
            environment = {**shared, "DMLC_ROLE": role}
            quiet = subprocess.DEVNULL
            started.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet))
        ends = time.monotonic() + options.patience
        for process in started:
            process.wait(max(0.0, ends - time.monotonic()))
    finally:
        for process in started:
            process.kill()
            process.wait()
    figures = json.loads(result.read_text())
    return figures["images"] / figures["seconds"], figures["accuracy"]


def report(rows: dict[str, list[tuple[float, float]]], options: argparse.Namespace) -> None:
    base = [speed for speed, _ in rows[RIVAL]]
    figures = {}
    print("| contender | images/s | over those of mxnet | accuracy | range |")
    print("|---|---|---|---|---|")
    for name, turns in rows.items():
        speeds, accuracies = zip(*turns, strict=True)
        ratio = statistics.median(ours / his for ours, his in zip(speeds, base, strict=True))
        figures[name] = {
            "images_per_second": statistics.median(speeds),
            "ratio": ratio,
            "accuracy": statistics.mean(accuracies),
        }
        print(
            f"| {name} | {statistics.median(speeds):,.0f} | {ratio:.2f} | "
            f"{statistics.mean(accuracies):.3f} | {min(accuracies):.3f} to {max(accuracies):.3f} |"
        )
    print(json.dumps({"rows": figures, "options": vars(options)}, default=str))


if __name__ == "__main__":
    main()
