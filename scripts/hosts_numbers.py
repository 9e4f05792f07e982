"""A campaign of numbers: steps on several hosts, through every transport, against one device.

    python scripts/hosts_numbers.py --hosts 2 4
    python scripts/hosts_numbers.py --netns --transports tcp torchdist    # needs root

Each case trains a small net in float64 for a few steps by one scheme of parallelism. On every host
the losses and all states must agree with those of one device to 1e-9. Hosts are processes that run
all cases one after the other; those of `inproc` are threads. With `--netns` two hosts are in
network namespaces of this machine with a link between them. A line for each case, and one JSON
object as the last line. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from netns import ADDRESSES, LINK, Link, linked_hosts  # noqa: E402

from purine.errors import PurineError  # noqa: E402
from purine.graph import Graph  # noqa: E402
from purine.transports.inproc import InprocWorld, inproc_worlds  # noqa: E402
from tests.runtime.host_cases import CASES, difference, expected, step_of, train  # noqa: E402

TRANSPORTS = ("inproc", "shm", "tcp", "torchdist", "mpi", "gaspi")
PATIENCE = 120.0
"""Seconds that hosts have for one case."""


def threads(hosts: int, cases: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Cases on hosts that are threads of this process, each with what is wrong."""
    for case in cases:
        net, scheme = case.split("/")
        try:
            expected(net)
            step = step_of(net, scheme, hosts)
        except PurineError as error:
            yield case, f"{type(error).__name__}: {error}"
            continue
        wrong: dict[str, str | None] = {}
        worlds = inproc_worlds([f"host{number}" for number in range(hosts)], delay=0.001)
        running = [
            threading.Thread(target=work, args=(net, step, world, wrong), daemon=True)
            for world in worlds
        ]
        for thread in running:
            thread.start()
        for world, thread in zip(worlds, running, strict=True):
            thread.join(PATIENCE)
            if thread.is_alive():
                wrong[world.host] = "it hangs"
        yield case, _text(wrong)


def work(net: str, step: Graph, world: InprocWorld, wrong: dict[str, str | None]) -> None:
    try:
        wrong[world.host] = difference(net, train(net, step, world))
    except Exception as error:
        wrong[world.host] = f"{type(error).__name__}: {error}"


def processes(
    transport: str, hosts: int, cases: Sequence[str], link: Link | None
) -> Iterator[tuple[str, str | None]]:
    """Cases on hosts that are processes, each with what is wrong, as soon as all have told."""
    reading, writing = os.pipe()
    started = start(transport, hosts, cases, writing, link)
    os.close(writing)
    told: dict[str, dict[str, str | None]] = {case: {} for case in cases}
    for line in lines(reading):
        row = json.loads(line)
        told[row["case"]][row["host"]] = row["wrong"]
        if len(told[row["case"]]) == hosts:
            yield row["case"], _text(told.pop(row["case"]))
    for process in started:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for case in told:
        codes = ", ".join(str(process.returncode) for process in started)
        yield case, f"the hosts ended or hung before it; exit codes {codes}"


def start(
    transport: str, hosts: int, cases: Sequence[str], stdout: int, link: Link | None
) -> list[subprocess.Popen[bytes]]:
    """The processes of all hosts, or the `mpiexec` that starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1" if link is None else ADDRESSES[0]}
    shared |= {"GLOO_SOCKET_IFNAME": "lo" if link is None else LINK}
    command = [sys.executable, "-m", "tests.runtime.host_cases", transport, *cases]

    def begin(before: Sequence[str], **own: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **shared, **own}
        return subprocess.Popen([*before, *command], cwd=ROOT, stdout=stdout, env=environment)

    if transport == "mpi":
        return [begin([str(Path(sys.executable).parent / "mpiexec"), "-n", str(hosts)])]
    return [
        begin(link.inside(rank) if link else [], RANK=str(rank), WORLD_SIZE=str(hosts))
        for rank in range(hosts)
    ]


def lines(pipe: int) -> Iterator[str]:
    """The lines of a pipe, until it ends or nothing comes for too long."""
    selector, rest = selectors.DefaultSelector(), b""
    selector.register(pipe, selectors.EVENT_READ)
    while selector.select(PATIENCE):
        data = os.read(pipe, 1 << 16)
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in whole)
    os.close(pipe)


def _text(wrong: dict[str, str | None]) -> str | None:
    texts = [f"{host}: {text}" for host, text in sorted(wrong.items()) if text]
    return "; ".join(texts) or None


def find_gpi2() -> None:
    """Let the hosts find GPI-2, which the tests build if its source is beside the checkout."""
    from purine.transports.gpi2 import LIBRARY
    from tests.transports.gpi2 import _library

    found, why = _library()
    if found is None:
        raise SystemExit(f"transport gaspi cannot be tested: {why}")
    os.environ[LIBRARY] = found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--hosts", nargs="+", type=int, choices=(2, 4), default=(2, 4))
    parser.add_argument("--cases", default="*", help="those that fit: lenet/*, */pipeline")
    parser.add_argument("--netns", action="store_true", help="two hosts in network namespaces")
    given = parser.parse_args()
    if given.netns and (os.geteuid() or not {"tcp", "torchdist"}.issuperset(given.transports)):
        parser.error("--netns needs root, and --transports tcp torchdist")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes namespaces too
    cases = [f"{net}/{scheme}" for net, scheme in CASES if fnmatch(f"{net}/{scheme}", given.cases)]
    if "gaspi" in given.transports:
        find_gpi2()
    failed, count = [], 0
    for hosts in (2,) if given.netns else given.hosts:
        for transport in given.transports:
            with linked_hosts() if given.netns else nullcontext() as link:
                run = (
                    threads(hosts, cases)
                    if transport == "inproc"
                    else processes(transport, hosts, cases, link)
                )
                for case, wrong in run:
                    name = f"{transport} {hosts} hosts {case}"
                    print(f"{name}: {wrong or 'ok'}", flush=True)
                    count += 1
                    failed += [name] if wrong else []
    summary = {"netns": given.netns, "cases": count, "failed": len(failed), "wrong": failed}
    print(json.dumps(summary))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
