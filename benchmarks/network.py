"""How close does a step on two hosts come to what their link and their cores allow?

Two hosts of one core each, in network namespaces of this machine with a shaped link between them
(`ip netns`, `tc tbf`: needs root). Contenders take turns: the compute alone, without a transfer;
the bare bytes of the gradients in both directions over a plain socket, with the CPU time that they
take; DDP, plain and with its fp16 hook, tuned (channels-last, fused SGD, static graph, gradients as
views of buckets); and Purine, plain and with fp16 transfers. Reported are medians over turns.
`limit_ratio` is Purine's step over the larger of (compute + CPU time of the bytes) and the time of
the bytes, `ddp_ratio` how many times as long DDP takes as Purine; both also for fp16, whose bytes
are taken for half. A turn should have a dozen steps or more: the end of its last step is not hidden
behind another. The last line is JSON.

With `--scheme` a worker on each host trains asynchronously, and a courier for each carries what it
has learnt to the first host and back, in every `--every` steps at most. Its contenders are the
compute alone and this. `compute_ratio` is how fast it is as a fraction of compute alone, and
`steps_per_round` how many steps pass between two exchanges.

    python benchmarks/network.py --rate 1gbit
    python benchmarks/network.py --rate 200mbit --scheme downpour
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from scaling import NETS
from step import DECAY, LR, MOMENTUM, samples

if TYPE_CHECKING:
    from purine.data import DataSet
    from purine.graph import Graph

CONTENDERS = ("compute", "bytes", "ddp", "ddp-fp16", "purine", "purine-fp16")
SCHEMES = ("downpour", "easgd", "local", "local-sgd", "diloco")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SPACES = ("purine-host0", "purine-host1")
LINK = "purinelink"
PORT = 29700
SOCKET = 29800
Steps = Callable[[int], int | None]
"""Makes some steps; with workers it returns how many rounds were completed meanwhile."""
Times = dict[str, list[tuple[float, ...]]]
"""By contender the seconds of a step and its CPU seconds, by turn; of workers also the steps for
each round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--net", choices=sorted(NETS), default="googlenet")
    parser.add_argument("--batch", type=int, help="samples for each host")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="steps of a turn")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--transport", choices=("tcp", "torchdist"), default="tcp")
    parser.add_argument("--scheme", choices=SCHEMES, help="train asynchronously")
    parser.add_argument("--every", type=int, default=16, help="steps between two exchanges")
    parser.add_argument("--worker", choices=(*CONTENDERS, "workers"), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batch = options.batch or NETS[options.net][1]
    if options.worker:
        work(options)
        return
    if options.scheme:
        options.contenders = ("compute", "workers")
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes namespaces too
    with hosts(options.rate):
        times = compare(options)
    report(options, times)


@contextmanager
def hosts(rate: str) -> Iterator[None]:
    """Two namespaces with a link of a given rate between them, for as long as this lasts."""
    try:
        for space in SPACES:
            subprocess.run(["ip", "netns", "add", space], check=True)
        ends = ["ip", "link", "add", LINK, "netns", SPACES[0], "type", "veth", "peer", "name", LINK]
        subprocess.run([*ends, "netns", SPACES[1]], check=True)
        for space, address in zip(SPACES, ADDRESSES, strict=True):
            inside = ["ip", "netns", "exec", space]
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            for command in (
                ["ip", "addr", "add", f"{address}/24", "dev", LINK],
                ["ip", "link", "set", LINK, "up"],
                ["ip", "link", "set", "lo", "up"],
                ["tc", "qdisc", "add", "dev", LINK, *shape],
            ):
                subprocess.run([*inside, *command], check=True)
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)


def compare(options: argparse.Namespace) -> Times:
    cores = sorted(os.sched_getaffinity(0))
    teams: dict[str, list[subprocess.Popen[str]]] = {}
    times: Times = {name: [] for name in options.contenders}
    try:
        for number, name in enumerate(options.contenders):
            print(f"starting {name} ...", file=sys.stderr, flush=True)
            teams[name] = [start(options, name, rank, PORT + number, cores) for rank in (0, 1)]
            ask(teams[name], 2)
        for turn in range(options.turns):
            for name, team in teams.items():
                times[name].append(ask(team, options.steps))
            shown = ", ".join(f"{name} {values[-1][0]:.3f} s" for name, values in times.items())
            print(f"{options.rate}, turn {turn + 1}/{options.turns}: {shown}", flush=True)
    finally:
        for team in teams.values():
            for worker in team:
                worker.kill()
                worker.wait()
    return times


def start(
    options: argparse.Namespace, name: str, rank: int, port: int, cores: list[int]
) -> subprocess.Popen[str]:
    core = str(cores[rank % len(cores)])
    command = ["ip", "netns", "exec", SPACES[rank], "taskset", "-c", core, sys.executable, __file__]
    command += ["--worker", name, "--rank", str(rank), "--net", options.net]
    command += ["--transport", options.transport, "--every", str(options.every)]
    command += ["--scheme", options.scheme] if options.scheme else []
    environment = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    environment |= {"RANK": str(rank), "GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--batch", str(options.batch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def ask(team: list[subprocess.Popen[str]], steps: int) -> tuple[float, ...]:
    """Let both hosts make some steps; seconds and CPU seconds of one, of the slower host."""
    for worker in team:
        assert worker.stdin is not None
        print(steps, file=worker.stdin, flush=True)
    answers = []
    for worker in team:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise SystemExit("a worker ended; its message is above")
        answers.append(tuple(map(float, line.split())))
    return max(answers)


def report(options: argparse.Namespace, times: Times) -> None:
    seconds = {name: [turn[0] for turn in turns] for name, turns in times.items()}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    cpu = {name: statistics.median(turn[1] for turn in turns) for name, turns in times.items()}
    for name, values in seconds.items():
        spread = f"({min(values):.3f} to {max(values):.3f})"
        print(f"{name:12}{medians[name]:9.3f} s  {spread}, CPU {cpu[name]:.3f} s")
    result: dict[str, object] = {"rate": options.rate, "net": options.net, "batch": options.batch}
    result["seconds"] = {name: round(value, 4) for name, value in medians.items()}
    result["cpu"] = {name: round(value, 4) for name, value in cpu.items()}
    for suffix, share in (("", 1.0), ("-fp16", 0.5)):
        key, purine = suffix.replace("-", "_"), medians.get(f"purine{suffix}")
        if purine is None:
            continue
        if {"compute", "bytes"} <= medians.keys():
            busy = medians["compute"] + share * cpu["bytes"]
            limit = max(busy, share * medians["bytes"])
            result[f"limit_ratio{key}"] = round(purine / limit, 3)
        if f"ddp{suffix}" in medians:
            result[f"ddp_ratio{key}"] = round(medians[f"ddp{suffix}"] / purine, 3)
    if options.scheme:
        ratio = [one / two for one, two in zip(seconds["compute"], seconds["workers"], strict=True)]
        result |= {"scheme": options.scheme, "every": options.every}
        result["compute_ratio"] = round(statistics.median(ratio), 3)
        result["compute_ratio_range"] = [round(min(ratio), 3), round(max(ratio), 3)]
        result["cpu_ratio"] = round(cpu["workers"] / cpu["compute"], 3)
        result["steps_per_round"] = round(
            statistics.median(turn[2] for turn in times["workers"]), 1
        )
    print(json.dumps(result))


def work(options: argparse.Namespace) -> None:
    """Get ready, then make as many steps as each line says and answer with the time of one."""
    import torch

    torch.set_num_threads(1)
    makers = {"ddp": ddp_steps, "ddp-fp16": ddp_steps, "bytes": byte_steps}
    makers["workers"] = worker_steps
    steps = makers.get(options.worker, purine_steps)(options)
    for line in sys.stdin:
        count = int(line)
        begin, cpu = time.perf_counter(), time.process_time()
        rounds = steps(count)
        end, cpu_end = time.perf_counter(), time.process_time()
        steps_each = count / max(1, rounds) if rounds is not None else 0.0
        print((end - begin) / count, (cpu_end - cpu) / count, steps_each, flush=True)


def worker_steps(options: argparse.Namespace) -> Steps:
    """A worker of asynchronous training; the first host has the shared parameters as well."""
    import purine as pu
    from purine.transports.open_world import OpenWorld

    step, data = step_and_data(options)
    scheme = options.scheme.removesuffix("-sgd")
    settings = {"push" if scheme == "downpour" else "every": options.every}
    step = pu.layout(step, "channels-last")
    graph = pu.parallel.serve(step, "host0:cpu:0,host1:cpu:0", scheme, **settings)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if options.rank == 0:
        world = OpenWorld.serving(address, port)
    else:
        world = OpenWorld.joining(address, port, transport=options.transport)
    run = pu.Run(graph, data=data, seed=0, threads=1, world=world)

    def steps(count: int) -> int:
        before = run.rounds
        for result in run.steps(count):
            assert result.loss == result.loss
        return (run.rounds - before) // (2 if options.rank == 0 else 1)

    return steps


def purine_steps(options: argparse.Namespace) -> Steps:
    import purine as pu
    from purine.transports.processes import ProcessWorld

    step, data = step_and_data(options)
    world = None
    if options.worker != "compute":
        step = pu.parallel.replicate(step, "host0-1:cpu:0")
        world = ProcessWorld(options.transport)
    step = pu.layout(step, "channels-last")
    if options.worker == "purine-fp16":
        step = pu.parallel.compress(step, "fp16")
    run = pu.Run(step, data=data, seed=0, threads=1, world=world)

    def steps(count: int) -> None:
        for result in run.steps(count):
            assert result.loss == result.loss

    return steps


def step_and_data(options: argparse.Namespace) -> tuple[Graph, DataSet]:
    """The step of one host, and images in memory."""
    import purine as pu

    setting = NETS[options.net][0]
    net = pu.zoo.NETS[options.net](
        batch=options.batch, classes=setting.classes, **setting.arguments
    )
    step = pu.solvers.sgd(pu.backward(net), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    rows = [part.numpy() for part in samples(setting)]
    source = pu.data.ArraySource(*rows, classes=setting.classes)
    return pu.prune(step, ["loss"]), pu.data.DataSet("memory", source)


def byte_steps(options: argparse.Namespace) -> Steps:
    """As many bytes as the parameters have, each way: half are gradients, half new values."""
    import numpy as np
    from rivals import RIVALS

    setting = NETS[options.net][0]
    model = RIVALS[options.net](setting.sample[0], setting.classes)
    count = sum(parameter.numel() for parameter in model.parameters())
    if options.rank == 0:
        with socket.create_server((ADDRESSES[0], SOCKET)) as server:
            connection = server.accept()[0]
    else:
        connection = _connected((ADDRESSES[0], SOCKET))
    sent, received = memoryview(np.zeros(4 * count, "u1")), memoryview(np.zeros(4 * count, "u1"))

    def steps(count: int) -> None:
        for _ in range(count):
            sender = threading.Thread(target=connection.sendall, args=(sent,))
            sender.start()
            place = 0
            while place < len(received):
                place += connection.recv_into(received[place:])
            sender.join()

    return steps


def _connected(address: tuple[str, int]) -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit(f"nobody listens on {address}")


def ddp_steps(options: argparse.Namespace) -> Steps:
    import torch
    import torch.distributed as dist
    from rivals import RIVALS, loss_of
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    setting = NETS[options.net][0]
    inputs, labels = samples(setting)
    model = RIVALS[options.net](setting.sample[0], setting.classes)
    model = model.to(memory_format=torch.channels_last)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    if options.worker == "ddp-fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )
    rows = slice(options.rank * options.batch, (options.rank + 1) * options.batch)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=False)
            loss = loss_of(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            assert loss.item() == loss.item()

    return steps


if __name__ == "__main__":
    main()
