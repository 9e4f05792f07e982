"""How much of the time does the GPU wait in steady state, and are its transfers hidden?

Trains as benchmarks/gpu.py does, with a trace, and looks at what is behind the first iterations:
the share of time in which the compute lane of the GPU runs nothing, the gap between the end of an
iteration and the start of the next, and how much of the time of input transfers lies behind
compute. The last line is JSON.

    python benchmarks/gpu_idle.py --rows googlenet:128,gpt2:16
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpu import CASES, RING, need_gpu, parse_row, purine_run

Spans = list[tuple[int, int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", default="googlenet:128,gpt2:16", help="nets with batches")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--skip", type=int, default=20, help="iterations that do not count")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--out", type=Path, help="folder for the traces")
    options = parser.parse_args()
    if options.steps <= options.skip:
        parser.error(f"--steps is {options.steps}; expected more than --skip, {options.skip}")
    need_gpu(parser)
    options.device = "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    found = {}
    for item in options.rows.split(","):
        net, batch = parse_row(parser, item)
        setting = replace(CASES[net].setting, count=RING * batch)
        with purine_run(net, batch, options, setting, record=True) as run:
            for _ in run.steps(options.steps):
                pass
            trace = run.trace
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            trace.save(options.out / f"{net}-{batch}.json")
        found[item] = row = idle(trace, options.skip)
        print(item, json.dumps(row), flush=True)
    print(json.dumps({"machine": torch.cuda.get_device_name(), "rows": found}))


def idle(trace: Any, skip: int) -> dict[str, float]:
    """What a trace tells of the GPU, from the start of iteration `skip` on."""
    gpu = [e for e in trace.events if "cuda" in e.location and e.iteration >= skip]
    compute = [event for event in gpu if event.lane == "compute"]
    begin, end = min(e.start for e in compute), max(e.end for e in compute)
    busy = union([(event.start, event.end) for event in compute])
    turns: dict[int, list[int]] = {}
    for event in compute:
        turn = turns.setdefault(event.iteration, [event.start, event.end])
        turn[:] = min(turn[0], event.start), max(turn[1], event.end)
    ordered = [turns[key] for key in sorted(turns)]
    gaps = [later[0] - before[1] for before, later in itertools.pairwise(ordered)]
    inbound = [e for e in gpu if e.lane == "inbound" and begin <= e.start and e.end <= end]
    moved = sum(event.end - event.start for event in inbound)
    hidden = sum(covered((event.start, event.end), busy) for event in inbound)
    return {
        "iterations": len(ordered),
        "ms": (end - begin) / len(ordered) / 1e6,
        "idle": 1 - sum(b - a for a, b in busy) / (end - begin),
        "gap_us": statistics.median(gaps) / 1e3,
        "input_ms": moved / len(ordered) / 1e6,
        "input_hidden": hidden / moved if moved else 1.0,
    }


def union(spans: Spans) -> Spans:
    found: Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def covered(span: tuple[int, int], spans: Spans) -> int:
    return sum(max(0, min(span[1], b) - max(span[0], a)) for a, b in spans)


if __name__ == "__main__":
    main()
