"""How much do our transports between hosts cost beside the engines that they use?

Every transport has two processes of this machine, each on its half of the cores. They also have the
raw engine that belongs to it (`rival_transports.py`): `shm` and a copy into shared memory, `tcp`
and a socket, `torchdist` and Gloo, `mpi` and puts of MPI, `gaspi` and GPI-2. All are started first
and take turns, so that whatever else the machine does hits all of them alike.

Latency is half of a round trip of 8 bytes. Bandwidth is that of iterations of up to 16 blobs of one
size, 4 MiB together unless one blob is larger, of which as many are under way as the exchange has
slots; the receiver answers each whole iteration. Ours goes through the interface of transports in
the way of the exchange: one thread puts and one waits for events, credits give slots back. Where
puts are prompt and a process has one core, one thread does both, and looks for events after each
put.

Reported are medians over turns, also of the CPU time that a message takes at its two ends. A ratio
is the time of ours over that of the raw engine in the same turn; `worst` is the largest from 64 KiB
up. Engines that are not installed are left out: `mpi` needs mpi4py and its mpiexec, `gaspi` a GPI-2
at PURINE_GPI2. The last line is JSON.

    python benchmarks/transport.py --turns 5
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from rival_transports import RAW, SMALL, End, Plan

SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 24, 1 << 26)
AIMED = 1 << 16
"""The aim for ratios holds from this size up."""
BITS = 251
"""Marks of blobs are numbers below this."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--transports", nargs="+", choices=sorted(RAW), default=list(RAW))
    parser.add_argument("--sizes", help="bytes of a blob, for example 1024,65536", type=sizes_of)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a measurement")
    parser.add_argument("--limit", type=float, help="seconds after which no new turn begins")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds to wait for one")
    parser.add_argument("--blobs", type=int, default=16, help="of an iteration, at most")
    parser.add_argument("--slots", type=int, default=4, help="iterations under way")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--control", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("turns", "blobs", "slots"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected 1 or more")
    plan = Plan(options.sizes or SIZES, options.blobs, options.slots)
    if options.worker:
        work(options, plan)
        return
    skipped = {name: why for name in options.transports if (why := missing(name))}
    for name, why in skipped.items():
        print(f"{name} is left out: {why}", flush=True)
    names = [name for name in options.transports if name not in skipped]
    if not names:
        sys.exit("none of the engines is there")
    times, failed = compare(options, plan, names)
    report(options, plan, times, skipped | failed)


def sizes_of(text: str) -> tuple[int, ...]:
    sizes = tuple(sorted({int(item) for item in text.split(",")}))
    if any(size < SMALL or size % 4 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text}; expected multiples of 4 from {SMALL} up")
    return sizes


def missing(transport: str) -> str:
    """What a transport needs and is not there."""
    if transport == "mpi":
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed"
        if mpiexec() is None:
            return "there is no mpiexec"
    if transport == "gaspi":
        from ctypes.util import find_library

        if not os.environ.get("PURINE_GPI2") and find_library("GPI2") is None:
            return "GPI-2 is not installed, and PURINE_GPI2 names no library"
    return ""


def mpiexec() -> str | None:
    """The one beside Python, which belongs to the MPI of its packages, or else of the system."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@dataclass(frozen=True)
class Cost:
    """The seconds of a message: of time, and of CPU at each of the two processes."""

    time: float
    cpu: tuple[float, float]


Times = dict[str, dict[int, list[Cost]]]
"""By contender and size the cost of a message, by turn."""


def compare(
    options: argparse.Namespace, plan: Plan, transports: list[str]
) -> tuple[Times, dict[str, str]]:
    """Let the contenders take turns; the times of each, and why some transports have none."""
    begin, failed = time.monotonic(), dict[str, str]()
    contenders = [(name, side) for name in transports for side in (name, RAW[name][0])]
    times: Times = {side: {size: [] for size in (SMALL, *plan.sizes)} for _, side in contenders}
    counts: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory(prefix="purine-") as folder:
        pairs = {name: Pair(name, options, plan, folder) for name in transports}
        try:
            for name, pair in pairs.items():
                if why := pair.meet():
                    failed[name] = why
                print(f"{name}: {why or 'ready'}", file=sys.stderr, flush=True)
            for turn in range(options.turns + 1):
                if options.limit and turn > 1 and time.monotonic() - begin > options.limit:
                    break
                for size in (SMALL, *plan.sizes):
                    for name, side in contenders:
                        if name in failed:
                            continue
                        try:
                            if turn:
                                cost = pairs[name].ask(side, size, counts[side, size])
                                times[side][size].append(cost)
                            else:
                                counts[side, size] = warm_up(
                                    pairs[name], side, size, options.seconds
                                )
                        except OSError as error:
                            failed[name] = f"{side} failed at {shown(size)}: {error}"
                            print(f"{name}: {failed[name]}", flush=True)
                            pairs[name].kill()
                what = f"turn {turn}/{options.turns}" if turn else "warmed up"
                print(f"{what}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        finally:
            for pair in pairs.values():
                pair.end()
    return {side: times[side] for name, side in contenders if name not in failed}, failed


def warm_up(pair: Pair, side: str, size: int, seconds: float) -> int:
    """The number of iterations, or of round trips, that take about so many seconds."""
    count = 4
    while True:
        once = pair.ask(side, size, count).time * pair.messages(size)
        if once * count > seconds / 4 or count >= 1 << 16:
            return max(4, min(1 << 16, round(seconds / once)))
        count *= 4


class Pair:
    """The two processes of a transport and of its raw engine."""

    def __init__(self, name: str, options: argparse.Namespace, plan: Plan, folder: str) -> None:
        self._options, self._plan = options, plan
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = f"{folder}/{name}"
        self._server.bind(address)
        self._server.listen(2)
        self._server.settimeout(0.2)
        self._ends: dict[int, socket.socket] = {}
        command = [sys.executable, __file__, "--worker", name, "--control", address]
        command += ["--sizes", ",".join(map(str, plan.sizes))]
        command += ["--blobs", str(plan.most_blobs), "--slots", str(plan.slots)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        starts = [[*command, "--rank", str(rank)] for rank in range(2)]
        environments = [{**environment, "RANK": str(rank)} for rank in range(2)]
        if name == "mpi":  # mpiexec numbers them
            starts = [[str(mpiexec()), "-n", "2", *command]]
            del environment["WORLD_SIZE"]
            environments = [environment]
        self._processes = [
            subprocess.Popen(start, env=variables, stdin=subprocess.DEVNULL, start_new_session=True)
            for start, variables in zip(starts, environments, strict=True)
        ]

    def meet(self) -> str:
        """Wait until both processes are ready; why they are not."""
        ends = time.monotonic() + self._options.patience
        while len(self._ends) < 2:
            codes = [process.poll() for process in self._processes]
            if any(code is not None for code in codes) or time.monotonic() > ends:
                self.kill()
                code = next((code for code in codes if code is not None), None)
                return "it did not start in time" if code is None else f"it ended with {code}"
            with suppress(TimeoutError):
                end, _ = self._server.accept()
                end.settimeout(self._options.patience)
                self._ends[int(end.recv(16))] = end
        return ""

    def messages(self, size: int) -> int:
        """Messages of one count: those of a round trip, or the blobs of an iteration."""
        return 2 if size == SMALL else self._plan.blobs(size)

    def ask(self, side: str, size: int, count: int) -> Cost:
        """The cost of one message of the transport or of the raw engine."""
        for end in self._ends.values():
            end.send(f"{side} {size} {count}".encode())
        answers = {rank: end.recv(64) for rank, end in self._ends.items()}
        if not all(answers.values()):
            raise ConnectionError("a process ended; its message is above")
        messages = count * self.messages(size)
        (seconds, first), (_, second) = (map(float, answers[rank].split()) for rank in range(2))
        return Cost(seconds / messages, (first / messages, second / messages))

    def end(self) -> None:
        """Let the processes end by themselves, and see that they do."""
        self._server.close()
        for end in self._ends.values():
            with suppress(OSError):
                end.send(b"end")
        ends = time.monotonic() + 10
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.monotonic()))
        self.kill()
        for end in self._ends.values():
            end.close()

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def work(options: argparse.Namespace, plan: Plan) -> None:
    """Be one of the two processes: answer each question with the seconds it took."""
    rank = int(os.environ["PMI_RANK"]) if options.rank is None else options.rank
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    os.sched_setaffinity(0, cores[:half] if rank == 0 else cores[-half:])
    raw, engine = RAW[options.worker]
    ours = Ours(options.worker, plan, rank)
    ends: dict[str, End] = {options.worker: ours, raw: engine(plan, rank)}
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(options.control)
    control.send(str(rank).encode())
    mark = 0
    for question in questions(control):
        side, *numbers = question.split()
        size, count = map(int, numbers)
        end = ends[side]
        mark = (mark + 1) % BITS
        if rank == 0:
            end.payload.fill_(mark)
        end.ping(2)  # both are here
        begin, begin_cpu = time.perf_counter(), time.process_time()
        if size == SMALL:
            end.ping(count)
        else:
            end.stream(size, count)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        if rank == 1 and size != SMALL and end.last(size, count) != (mark, mark):
            raise SystemExit(f"{side}: {end.last(size, count)} arrived, and not {mark}")
        control.send(f"{seconds!r} {cpu!r}".encode())
    ends[raw].close()
    ours.close()


def questions(control: socket.socket) -> Any:
    """Questions until the end. Without the process that asks, this process ends at once."""
    asked: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        while (question := control.recv(64).decode()) != "end":
            if not question:
                os._exit(1)
            asked.put(question)
        asked.put("end")

    threading.Thread(target=read, daemon=True).start()
    return iter(asked.get, "end")


class Ours(End):
    """A transport of ours, used as the exchange does."""

    def __init__(self, name: str, plan: Plan, rank: int) -> None:
        super().__init__(plan, rank)
        import torch

        from purine.graph import Blob
        from purine.lowering.hosts import Channel
        from purine.transports.base import Arrived, Granted, Lost
        from purine.transports.processes import ProcessWorld

        self._arrived, self._granted, self._lost = Arrived, Granted, Lost
        self._world = ProcessWorld(name)
        (self._peer,) = self._world.peers
        shapes = [SMALL] + [size for size in plan.sizes for _ in range(plan.blobs(size))]
        blobs = [Blob(f"blob{n}", (size // 4,)) for n, size in enumerate(shapes)]
        own = self._world.host
        forth = [Channel("host0", "host1", n, f"op{n}", blob) for n, blob in enumerate(blobs)]
        back = [Channel("host1", "host0", 0, "op0", blobs[0])]
        self._transport = self._world.transport()
        incoming, outgoing = (back, forth) if own == "host0" else (forth, back)
        self._transport.open([self._peer], incoming, outgoing, plan.slots)
        self._channels: dict[int, range] = {}
        first = 1
        for size in plan.sizes:
            self._channels[size] = range(first, first + plan.blobs(size))
            first += plan.blobs(size)
        self._values = self.payload.view(torch.float32)
        self._next = 0
        """The iteration that comes next: each has the blobs of one size."""
        self._completed = 0
        """The iterations that are complete at the peer."""
        self._credits: SimpleQueue[int] = SimpleQueue()
        """What the thread that listens hears of that, for the one that puts."""
        self._here: Counter[int] = Counter()
        """By iteration how many of its blobs are here."""

    def ping(self, count: int) -> None:
        transport, peer, value = self._transport, self._peer, self._values[: SMALL // 4]
        for version in range(self._next, self._next + count):
            if self.rank == 1:
                self._receive(version, 1)
            transport.put(peer, 0, version, value)
            if self.rank == 0:
                self._receive(version, 1)
            transport.credit(peer, version + 1)
        self._next += count

    def stream(self, size: int, count: int) -> None:
        last = self._next + count
        if self.rank == 1:
            for version in range(self._next, last):
                self._receive(version, len(self._channels[size]))
                self._transport.credit(self._peer, version + 1)
            self._next = last
            return
        values = [
            (channel, self._values[k * size // 4 : (k + 1) * size // 4])
            for k, channel in enumerate(self._channels[size])
        ]
        if self._transport.prompt and len(os.sched_getaffinity(0)) == 1:
            self._stream_alone(values, last)
            return
        listening = threading.Thread(target=self._listen, args=(last,), daemon=True)
        listening.start()
        for version in range(self._next, last):
            while version >= self._completed + self.plan.slots:
                self._completed = self._credits.get()
            for channel, value in values:
                self._transport.put(self._peer, channel, version, value)
        listening.join()
        self._completed = self._next = last
        while not self._credits.empty():
            self._credits.get()

    def _stream_alone(self, values: list[tuple[int, Any]], last: int) -> None:
        """Put and listen on this thread."""
        transport, peer = self._transport, self._peer
        self._heard = self._next
        for version in range(self._next, last):
            while version >= self._heard + self.plan.slots:
                self._take()
            for channel, value in values:
                transport.put(peer, channel, version, value)
                if events := transport.wait(0.0):
                    self._hear(events)
        while self._heard < last:
            self._take()
        self._completed = self._next = last
        while not self._credits.empty():
            self._credits.get()

    def _listen(self, last: int) -> None:
        """The thread that waits for events, until the peer has completed all."""
        self._heard = 0
        while self._heard < last:
            self._take()

    def _take(self) -> list[Any]:
        """The arrivals since the last call; waits for an event."""
        return self._hear(self._transport.wait(1.0))

    def _hear(self, events: list[Any]) -> list[Any]:
        """The arrivals among some events; the others are noted."""
        arrivals = []
        for event in events:
            if isinstance(event, self._arrived):
                arrivals.append(event)
            elif isinstance(event, self._granted):
                self._heard = event.completed
                self._credits.put(event.completed)
            elif isinstance(event, self._lost):
                print(f"the peer is lost: {event.why}", file=sys.stderr, flush=True)
                os._exit(1)  # from any thread
        return arrivals

    def _receive(self, version: int, blobs: int) -> None:
        """Wait until all blobs of an iteration are in their slots, and take them from there."""
        here = self._here
        while here[version] < blobs:
            for event in self._take():
                self._transport.slot(self._peer, event.channel, event.version)
                here[event.version] += 1
        del here[version]

    def last(self, size: int, count: int) -> tuple[int, int]:
        slot = self._transport.slot(self._peer, self._channels[size][-1], self._next - 1)
        assert slot is not None
        line = slot.view(self.payload.dtype)
        return int(line[0]), int(line[-1])

    def close(self) -> None:
        self._transport.close()
        self._world.close()


def report(options: argparse.Namespace, plan: Plan, times: Times, skipped: dict[str, str]) -> None:
    import torch

    print(
        f"\ntorch {torch.__version__}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    )
    ratios: dict[str, dict[str, float]] = {}
    for transport in options.transports:
        raw = RAW[transport][0]
        names = [name for name in (transport, raw) if name in times]
        if not names:
            continue
        print(f"\n{'':>8}" + "".join(f"{name:>46}" for name in names) + f"{'ratio':>22}")
        for size in (SMALL, *plan.sizes):
            cells = [cell(times[name][size], size) for name in names]
            line = f"{shown(size):>8}" + "".join(f"{text:>46}" for text in cells)
            if len(names) == 2:
                pairs = zip(times[transport][size], times[raw][size], strict=True)
                found = [one.time / other.time for one, other in pairs]
                ratios.setdefault(transport, {})[str(size)] = round(statistics.median(found), 3)
                text = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
                line += f"{text:>22}"
            print(line, flush=True)
    medians = {
        name: {size: statistics.median(one.time for one in found) for size, found in sizes.items()}
        for name, sizes in times.items()
    }
    worst = max(
        (
            (ratio, transport, int(size))
            for transport, by_size in ratios.items()
            for size, ratio in by_size.items()
            if int(size) >= AIMED
        ),
        default=None,
    )
    result = {
        "slots": plan.slots,
        "blobs": {str(size): plan.blobs(size) for size in plan.sizes},
        "turns": min((len(found) for one in times.values() for found in one.values()), default=0),
        "latency_us": {name: round(found[SMALL] * 1e6, 2) for name, found in medians.items()},
        "gigabytes_per_second": {
            name: {str(size): round(size / found[size] / 1e9, 4) for size in plan.sizes}
            for name, found in medians.items()
        },
        "cpu_us": {
            name: {str(size): cpu_of(found) for size, found in by_size.items()}
            for name, by_size in times.items()
        },
        "ratios": ratios,
        "worst": worst and dict(zip(("ratio", "transport", "size"), worst, strict=True)),
        "skipped": skipped,
    }
    print(json.dumps(result))


def cell(found: list[Cost], size: int) -> str:
    """The median of some times with its range (8 bytes: latency), and the CPU time of both ends."""
    times, cpu = sorted(one.time for one in found), " + ".join(f"{us:.1f}" for us in cpu_of(found))
    middle, low, high = statistics.median(times), times[0], times[-1]
    if size == SMALL:
        text = f"{middle * 1e6:.1f} us ({low * 1e6:.1f} to {high * 1e6:.1f})"
    else:
        middle, low, high = (size / value / 1e9 for value in (middle, high, low))
        text = f"{middle:.3f} GB/s ({low:.3f} to {high:.3f})"
    return f"{text}, {cpu} us"


def cpu_of(found: list[Cost]) -> list[float]:
    """The microseconds of CPU time that a message takes at the sender and at the receiver."""
    return [round(statistics.median(one.cpu[rank] for one in found) * 1e6, 2) for rank in range(2)]


def shown(size: int) -> str:
    """A size with its unit.

    >>> shown(8), shown(65536), shown(16 << 20)
    ('8 B', '64 KiB', '16 MiB')
    """
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


if __name__ == "__main__":
    main()
