"""How long does a training step take on one GPU, and how much memory: Purine against PyTorch?

Contenders: Purine; PyTorch eager with a fused optimizer; `torch.compile` in its modes default,
reduce-overhead and max-autotune, with the optimizer compiled too where that is quicker. All train
in the same precision, layout and batch, without dropout. Each is a process of its own. For each
row, a net with a batch, they are started one after the other, for compilation needs the CPU, and
then take turns of about a second, so that whatever happens to the machine hits all of them alike.
Reported are medians over turns. Purine reads every batch on the host and copies it to the device,
images as bytes; the batches of the others are on the device already.

Memory is what the process reserved on the device at most during its turns, after warm-up and
`torch.cuda.empty_cache`: what captured graphs hold counts, and what trying out algorithms took does
not. The most that was allocated is told as well. The start is the time from the first line of the
net's construction to the end of three steps, with compilation, whose caches begin empty.

    python benchmarks/gpu.py --rows googlenet:128,nin:1024
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from step import DECAY, LR, MOMENTUM, Setting, held, samples


@dataclass(frozen=True)
class Case:
    """A net: its samples and the arguments of the zoo's net, and those of the plain module."""

    setting: Setting
    rival: dict[str, Any] = field(default_factory=dict)


GOOGLENET = {"batch_norm": True, "auxiliary": False, "dropout": 0.0}
SMALL_GPT2 = {"context": 16, "layers": 1, "width": 64, "heads": 1, "dropout": 0.0}
CASES = {
    "googlenet": Case(Setting((3, 224, 224), 1000, GOOGLENET)),
    "resnet50": Case(Setting((3, 224, 224), 1000)),
    "nin": Case(Setting((3, 32, 32), 10, {"dropout": 0.0})),
    "gpt2": Case(Setting((512,), 50257, {"context": 512, "dropout": 0.0})),
}
TINY = {
    "googlenet": Case(Setting((3, 64, 64), 10, GOOGLENET)),
    "resnet50": Case(Setting((3, 64, 64), 10)),
    "nin": Case(Setting((3, 8, 8), 10, {"dropout": 0.0})),
    "gpt2": Case(Setting((16,), 100, SMALL_GPT2), {"width": 64, "layers": 1}),
}
"""The same for a look at the frame on any machine."""
ROWS = "googlenet:128,googlenet:32,resnet50:128,nin:128,nin:1024,gpt2:16,gpt2:4"
MODES = ("default", "reduce-overhead", "max-autotune")
CONTENDERS = ("purine", "eager", *MODES)
RING = 4
"""Batches that take turns."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", default=ROWS, help=f"nets with batches (default {ROWS})")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument(
        "--without",
        nargs="+",
        default=(),
        metavar="ROW/CONTENDER",
        help="who takes no part in a row, such as googlenet:128/max-autotune",
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn, about")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--tiny", action="store_true", help="small nets and samples, to look at")
    parser.add_argument(
        "--optimizer",
        choices=("best", "fused", "compiled"),
        default="best",
        help="which optimizer goes with a compiled model (default: the quicker one)",
    )
    parser.add_argument("--limit", type=float, default=0.0, help="seconds after which none starts")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for an answer")
    parser.add_argument(
        "--together", action="store_true", help="start all rows at once: quicker, busier starts"
    )
    parser.add_argument("--keep-caches", action="store_true", help="start with what was compiled")
    parser.add_argument("--logs", type=Path, help="folder for what the contenders say")
    parser.add_argument("--warm", type=int, default=3, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--net", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    rows = [parse_row(parser, item) for item in options.rows.split(",")]
    known = {f"{net}:{batch}/{name}" for net, batch in rows for name in options.contenders}
    for item in options.without:
        if item not in known:
            parser.error(f"--without: {item!r} takes no part anyway; expected {min(known)}, ...")
    if options.device == "cuda":
        need_gpu(parser)
    begin = time.monotonic()
    options.ends = begin + options.limit if options.limit else float("inf")
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True) as caches:
        options.caches = caches
        crews = {row: start(*row, options) for row in rows} if options.together else {}
        for crew in crews.values():
            for worker in crew.values():
                worker.ready()
        for net, batch in rows:
            if time.monotonic() > options.ends:
                print(f"{net}:{batch} is left out: {options.limit:g} s are over", flush=True)
                continue
            measured = compare(net, batch, options, crews.get((net, batch)))
            found[f"{net}:{batch}"] = summary(net, batch, options, measured)
    print(table(found))
    print(json.dumps({"precision": options.precision, "rows": found}))


def need_gpu(parser: argparse.ArgumentParser) -> None:
    import torch

    if not torch.cuda.is_available():
        parser.error("torch sees no GPU; benchmarks/gpu.py --device cpu --tiny runs without one")


def parse_row(parser: argparse.ArgumentParser, text: str) -> tuple[str, int]:
    net, _, batch = text.strip().partition(":")
    if net not in CASES or not batch.isdecimal() or int(batch) < 1:
        parser.error(f"--rows: {text!r} is not NET:BATCH with a net of {', '.join(CASES)}")
    return net, int(batch)


@dataclass
class Measured:
    """What one contender showed in one row; `failed` says why there is no more of it."""

    start: float = 0.0
    note: str = ""
    machine: str = ""
    failed: str = ""
    times: list[float] = field(default_factory=list)
    allocated: float = 0.0
    reserved: float = 0.0


def start(net: str, batch: int, options: argparse.Namespace) -> dict[str, Worker]:
    return {name: Worker(name, net, batch, options) for name in entered(net, batch, options)}


def entered(net: str, batch: int, options: argparse.Namespace) -> list[str]:
    """Who takes part in a row."""
    return [name for name in options.contenders if f"{net}:{batch}/{name}" not in options.without]


def compare(
    net: str,
    batch: int,
    options: argparse.Namespace,
    crew: dict[str, Worker] | None = None,
) -> dict[str, Measured]:
    """Let the contenders of a row take turns, and end them; those that are not there yet start."""
    workers = crew or {}
    try:
        for name in entered(net, batch, options) if crew is None else ():
            workers[name] = worker = Worker(name, net, batch, options)
            worker.ready()
        for turn in range(options.turns):
            for worker in workers.values():
                worker.turn()
            latest = ", ".join(
                f"{name} {worker.measured.times[-1] * 1e3:.2f} ms"
                for name, worker in workers.items()
                if worker.measured.times
            )
            print(f"{net}:{batch}, turn {turn + 1}/{options.turns}: {latest}", flush=True)
        for worker in workers.values():
            worker.weigh()
    finally:
        for worker in workers.values():
            worker.end()
    return {name: worker.measured for name, worker in workers.items()}


class Worker:
    """The process of one contender. Whatever goes wrong with it is noted and stops no other."""

    def __init__(self, name: str, net: str, batch: int, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.measured = Measured()
        self.steps = 1
        self.process: subprocess.Popen[str] | None = None
        if time.monotonic() > options.ends:
            self.measured.failed = f"not started: {options.limit:g} s are over"
            return
        command = [sys.executable, __file__, "--worker", name, "--net", net, "--batch", str(batch)]
        for option in ("device", "precision", "optimizer", "warm"):
            command += [f"--{option}", str(getattr(options, option))]
        command += ["--tiny"] if options.tiny else []
        places = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        caches = f"{options.caches}/{net}-{batch}-{name}"
        fresh = {} if options.keep_caches else dict.fromkeys(places, caches)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            self.log = (options.logs / f"{net}-{batch}-{name}.txt").open("w+")
        else:
            self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **fresh},
        )
        self.what = f"{net}:{batch}, preparing {name} ..."
        self.begun = time.monotonic()
        self.late = min(self.begun + options.patience, max(self.begun + 60.0, options.ends))

    def ready(self) -> None:
        """Wait until the contender can take turns."""
        options = self.options
        if self.process is None:
            return
        print(self.what, file=sys.stderr, flush=True)
        answer = self._answer(max(1.0, self.late - time.monotonic()), since=self.begun)
        if answer:
            self.measured.start, self.measured.note = answer["start"], answer["note"]
            self.measured.machine = answer["machine"]
            once = self._ask("3")
            if once:
                self.steps = max(2, round(options.seconds / max(once["seconds"], 1e-5)))

    def turn(self) -> None:
        answer = self._ask(str(self.steps))
        if answer:
            self.measured.times.append(answer["seconds"])

    def weigh(self) -> None:
        answer = self._ask("memory")
        if answer:
            self.measured.allocated = answer["allocated"]
            self.measured.reserved = answer["reserved"]

    def end(self) -> None:
        if self.process is None:
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.log.close()

    def _ask(self, question: str) -> dict[str, Any] | None:
        if self.process is None or self.measured.failed:
            return None
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the answer will be missing, the reason in the log
            print(question, file=self.process.stdin, flush=True)
        return self._answer(self.options.patience)

    def _answer(self, patience: float, since: float | None = None) -> dict[str, Any] | None:
        """The next line of the process, or nothing and a note of the reason."""
        assert self.process is not None
        assert self.process.stdout is not None
        alarm = threading.Timer(patience, self.process.kill)
        alarm.start()
        begin = time.monotonic()
        line = self.process.stdout.readline()
        alarm.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            self.measured.failed = answer.get("failed", "")
        elif time.monotonic() - begin >= patience:
            waited = time.monotonic() - (begin if since is None else since)
            self.measured.failed = f"no answer in {waited:.0f} s"
        else:
            self.log.seek(0)
            said = [text for text in self.log.read().splitlines() if text.strip()] or [""]
            self.measured.failed = f"ended with {self.process.wait()}: {said[-1][:160]}"
        if self.measured.failed:
            print(f"{self.name}: {self.measured.failed}", file=sys.stderr, flush=True)
            return None
        return answer


def summary(
    net: str, batch: int, options: argparse.Namespace, measured: Mapping[str, Measured]
) -> dict[str, Any]:
    """The row's results, which are also printed."""
    good = {name: one for name, one in measured.items() if one.times and not one.failed}
    ms = {name: statistics.median(one.times) * 1e3 for name, one in good.items()}
    setting = (TINY if options.tiny else CASES)[net].setting
    tokens = len(setting.sample) == 1
    each = batch * setting.sample[0] if tokens else batch
    row: dict[str, Any] = {
        "machine": next((one.machine for one in good.values()), ""),
        "ms": {name: round(value, 3) for name, value in ms.items()},
        "spread_ms": {
            name: [round(edge * 1e3, 3) for edge in (min(one.times), max(one.times))]
            for name, one in good.items()
        },
        "unit": "tokens/s" if tokens else "images/s",
        "rate": {name: round(each / value * 1e3, 1) for name, value in ms.items()},
        "reserved_mb": {name: round(one.reserved / 1e6, 1) for name, one in good.items()},
        "allocated_mb": {name: round(one.allocated / 1e6, 1) for name, one in good.items()},
        "start_s": {name: round(one.start, 2) for name, one in good.items()},
        "notes": {
            n: one.failed or one.note for n, one in measured.items() if one.failed or one.note
        },
    }
    row |= ratios(good)
    print(f"\n{net}:{batch}, {options.precision}, {row['machine']}")
    print(f"{'':16}{'ms/step':>10}{'from to':>20}{row['unit']:>12}{'MB':>10}{'start s':>9}")
    for name, value in ms.items():
        low, high = row["spread_ms"][name]
        print(
            f"{name:16}{value:10.3f}{f'{low:.3f} {high:.3f}':>20}{row['rate'][name]:12.1f}"
            f"{row['reserved_mb'][name]:10.0f}{row['start_s'][name]:9.1f}"
        )
    for name, note in row["notes"].items():
        print(f"{name}: {note}")
    print(json.dumps({f"{net}:{batch}": row}), flush=True)
    return row


def ratios(good: Mapping[str, Measured]) -> dict[str, Any]:
    """How many times longer rivals take than Purine, turn by turn, and its memory over eager's."""
    found: dict[str, Any] = {}
    purine, eager = good.get("purine"), good.get("eager")
    modes = {name: statistics.median(good[name].times) for name in MODES if name in good}
    best = min(modes, key=lambda name: modes[name]) if modes else None
    if best:
        found["best_mode"] = best
    if purine and eager:
        found["eager_ratio"] = _ratio(eager.times, purine.times)
        if eager.reserved:
            found["memory_ratio"] = round(purine.reserved / eager.reserved, 4)
    if purine and best:
        found["compile_ratio"] = _ratio(good[best].times, purine.times)
    return found


def _ratio(rival: list[float], ours: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(rival, ours, strict=True)), 4)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """All rows in Markdown: milliseconds and megabytes of each contender."""
    shown = {name for row in rows.values() for name in (*row["ms"], *row["notes"])}
    names = [name for name in CONTENDERS if name in shown]
    heads = ["row", *names, "eager_ratio", "compile_ratio", "memory_ratio"]
    lines = ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for title, row in rows.items():
        cells = [title]
        for name in names:
            if name in row["ms"]:
                size, start = row["reserved_mb"][name], row["start_s"][name]
                cells.append(f"{row['ms'][name]:.3f} ms, {size:.0f} MB, start {start:.1f} s")
            else:
                cells.append("failed" if name in row["notes"] else "")
        cells += [str(row.get(key, "")) for key in heads[-3:]]
        lines.append(f"| {' | '.join(cells)} |")
    for title, row in rows.items():
        lines += [f"- {title}, {name}: {note}" for name, note in row["notes"].items()]
    return "\n".join([*lines, ""])


def work(options: argparse.Namespace) -> None:
    """Get ready and say so, then answer: a number asks for so many steps, `memory` for the peak."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer

    def answer(**values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        _serve(options, answer)
    except Exception as error:
        message = " ".join(str(error).split())
        answer(failed=f"{type(error).__name__}: {message[:300]}")
        raise


def _serve(options: argparse.Namespace, answer: Callable[..., None]) -> None:
    import torch
    from rival_gpu import synchronise, torch_steps

    cuda = options.device == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.zeros(1, device=options.device)
    machine = torch.cuda.get_device_name() if cuda else "cpu"
    case = (TINY if options.tiny else CASES)[options.net]
    setting = replace(case.setting, count=RING * options.batch)
    if options.worker == "purine":
        import purine  # noqa: F401

        begin = time.perf_counter()
        job = purine_run(options.net, options.batch, options, setting)

        def run(count: int) -> None:
            for result in job.steps(count):
                assert result.loss == result.loss

        run(options.warm)
        synchronise(options.device)
        start, note = time.perf_counter() - begin, ""
    else:
        run, start, note = torch_steps(options, setting, case.rival, options.worker)
    run(options.warm)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    answer(start=start, note=note, machine=f"{machine}, torch {torch.__version__}")
    for line in sys.stdin:
        if line.strip() == "memory" and cuda:
            answer(
                allocated=torch.cuda.max_memory_allocated(),
                reserved=torch.cuda.max_memory_reserved(),
            )
        elif line.strip() == "memory":
            answer(allocated=held("VmHWM"), reserved=held("VmHWM"))
        else:
            count = int(line)
            run(options.warm)
            synchronise(options.device)
            begin = time.perf_counter()
            run(count)
            synchronise(options.device)
            answer(seconds=(time.perf_counter() - begin) / count)


def purine_run(
    name: str, batch: int, options: argparse.Namespace, setting: Setting, *, record: bool = False
) -> Any:
    """A run of Purine's step, as a job on the device runs it."""
    import purine as pu

    tokens = name == "gpt2"
    sizes = {"vocabulary" if tokens else "classes": setting.classes}
    sizes |= {} if tokens else {"image": setting.sample}
    net = pu.zoo.NETS[name](batch=batch, **sizes, **setting.arguments)
    rows = [part.numpy() for part in samples(setting)]
    if not tokens:  # images are stored as bytes, go to the GPU as such, and are scaled there
        rows[0] = (rows[0] * 40 + 128).clip(0, 255).astype("uint8")
    names = ("tokens", "targets") if tokens else ("image", "label")
    source = pu.data.ArraySource(*rows, names=names, classes=setting.classes)
    net = net if tokens else pu.data.prepare(net, source)
    if options.device == "cuda":
        net = pu.join(net)
    if options.precision == "bf16":
        net = pu.mixed(net, "bf16")
    if tokens:
        step = pu.solvers.adamw(pu.backward(net), lr=1e-4, weight_decay=0.1)
    else:
        step = pu.solvers.sgd(pu.backward(net), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    step = pu.prune(step, ["loss"])
    if options.device == "cuda":
        step = pu.to_device(step, "cuda:0")
    step = pu.layout(step, "contiguous" if tokens else "channels-last")
    if options.device == "cuda":
        step = pu.fuse(step, devices=["cuda:0"])
    data = pu.data.DataSet("memory", source)
    return pu.Run(step, data=data, seed=0, record=record)


if __name__ == "__main__":
    main()
