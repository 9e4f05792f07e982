"""A campaign of numbers: steps on several hosts, through every transport, against one device.

    python scripts/hosts_numbers.py --hosts 2 4
    python scripts/hosts_numbers.py --netns --transports tcp torchdist    # needs root

Each case trains a small net in float64 for a few steps by one scheme of parallelism. On every host
the losses and all states must agree with those of one device to 1e-9. Hosts are processes that run
all cases one after the other; those of `inproc` are threads. They are forked from a process that
has built all steps (`warm.py`). With `--netns` two hosts are in network namespaces of this machine
with a link between them. A line for each case, and one JSON object as the last line. The exit code
is 1 if a case failed.
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
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # hosts are forked, with torch as it is here
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from netns import ADDRESSES, LINK, Link, linked_hosts  # noqa: E402
from warm import Child, Warm  # noqa: E402

from purine.errors import PurineError  # noqa: E402
from purine.graph import Graph  # noqa: E402
from purine.runtime.run import Run  # noqa: E402, F401  (hosts need it)
from purine.transports.inproc import InprocWorld, inproc_worlds  # noqa: E402
from tests.parallel.nets import Trained  # noqa: E402
from tests.runtime.host_cases import (  # noqa: E402
    CASES,
    EXPECTED,
    difference,
    expected,
    step_of,
    train,
)

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


HOST = "import sys, tests.runtime.host_cases as cases; cases.run_host(sys.argv[1], sys.argv[2:])"
REFERENCE = """
import sys, torch, tests.runtime.host_cases as cases
trained = [cases.expected(net) for net in sys.argv[2:]]
torch.save([(one.losses, one.states) for one in trained], sys.argv[1])
"""


def warmed(cases: Sequence[str], numbers_of_hosts: Sequence[int]) -> Warm:
    """A process that has built all steps and knows what one device gives, to fork hosts from.

    The numbers of one device come from a child, since a process that has run kernels has threads.
    """
    nets = list(dict.fromkeys(case.split("/")[0] for case in cases))
    descriptor, path = tempfile.mkstemp(prefix="numbers-")
    with closing(Warm()) as warm:
        reference = warm.start("-c", REFERENCE, path, *nets, streams=(0, 1, 2), env={})
        for case in cases:
            for hosts in numbers_of_hosts:
                with suppress(PurineError):  # it comes again where the case is run
                    step_of(*case.split("/"), hosts)
        if reference.wait():
            raise SystemExit("the nets cannot be trained on one device")
    EXPECTED.update(zip(nets, (Trained(*one) for one in torch.load(path)), strict=True))
    os.close(descriptor)
    os.unlink(path)
    return Warm()


def processes(
    warm: Warm, transport: str, hosts: int, cases: Sequence[str], link: Link | None
) -> Iterator[tuple[str, str | None]]:
    """Cases on hosts that are processes, each with what is wrong, as soon as all have told."""
    reading, writing = os.pipe()
    started = start(warm, transport, hosts, cases, writing, link)
    os.close(writing)
    told: dict[str, dict[str, str | None]] = {case: {} for case in cases}
    for line in lines(reading):
        row = json.loads(line)
        told[row["case"]][row["host"]] = row["wrong"]
        if len(told[row["case"]]) == hosts:
            yield row["case"], _text(told.pop(row["case"]))
    ends, codes = time.monotonic() + 10, list[object]()
    for process in started:
        while process.poll() is None and time.monotonic() < ends:
            time.sleep(0.01)
        code = process.poll()
        codes.append("it hangs" if code is None else code)
        if code is None and isinstance(process, Child):
            process.close()
        elif code is None:
            process.kill()
            process.wait()
    if not told and any(codes):
        yield "end", f"exit codes {codes}"
    for case in told:
        yield case, f"the hosts ended or hung before it; exit codes {codes}"


def start(
    warm: Warm, transport: str, hosts: int, cases: Sequence[str], stdout: int, link: Link | None
) -> list[Child] | list[subprocess.Popen[bytes]]:
    """The processes of all hosts, or the `mpiexec` that starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_PORT": str(port), "WORLD_SIZE": str(hosts)}
    shared |= {"MASTER_ADDR": "127.0.0.1" if link is None else ADDRESSES[0]}
    shared |= {"GLOO_SOCKET_IFNAME": "lo" if link is None else LINK}
    command = ["-c", HOST, transport, *cases]
    if transport == "mpi":
        mpiexec = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(hosts)]
        ranks = [*mpiexec, *warm.mpi(*command)]
        return [subprocess.Popen(ranks, stdout=stdout, env={**os.environ, **shared})]
    return [
        warm.start(
            *command,
            streams=(0, stdout, 2),
            env={**shared, "RANK": str(rank)},
            namespace=link.spaces[rank] if link else None,
        )
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
    given.hosts = (2,) if given.netns else given.hosts
    failed, count, seconds = [], 0, {}
    warm, links = warmed(cases, given.hosts), linked_hosts if given.netns else nullcontext
    for hosts, transport in product(given.hosts, given.transports):
        begun = time.monotonic()
        with links() as link:
            run = (
                threads(hosts, cases)
                if transport == "inproc"
                else processes(warm, transport, hosts, cases, link)
            )
            for case, wrong in run:
                name = f"{transport} {hosts} hosts {case}"
                print(f"{name}: {wrong or 'ok'}", flush=True)
                count += 1
                failed += [name] if wrong else []
        seconds[f"{transport} {hosts}"] = round(time.monotonic() - begun)
    warm.close()
    summary = {"netns": given.netns, "cases": count, "failed": len(failed), "seconds": seconds}
    summary["wrong"] = failed
    print(json.dumps(summary))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
