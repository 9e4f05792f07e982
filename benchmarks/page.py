"""How large pages are, how soon they can be used, and how smoothly their timelines move.

Each page is made, opened from disk in a headless Chromium, and panned on screen; all of them in
turns, so that a busy moment of the machine meets every one. The time until a page can be used ends
when its timeline is drawn, counted from the start of the navigation. `draw` is the time that the
page's script needs for a frame, `frame` the time between frames while the view moves, which the
refresh rate of the screen (60 a second) bounds from below.

    python benchmarks/page.py
    python benchmarks/page.py --live --seconds 20      what --live costs a training run
    python benchmarks/page.py --windows 45             the same within one run, with less noise

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from purine.job import make_plan, merge
from purine.job.foresee import foresee
from purine.viewer.document import Part, document, of_prediction, of_trace
from purine.viewer.page import page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.viewer.traces import synthetic  # noqa: E402

TIMELINE = "document.querySelector('canvas.timeline').timeline"
FRAMES = f"""async (zoom) => {{
    const t = {TIMELINE};
    t.fit();
    t.zoom(zoom);
    const draws = [], frames = [];
    const draw = t.draw.bind(t);
    t.draw = () => {{
        const begin = performance.now();
        draw();
        draws.push(performance.now() - begin);
    }};
    let last = await new Promise(requestAnimationFrame);
    for (let k = 0; k < 90; k++) {{
        t.pan(k % 30 < 15 ? 0.02 : -0.02);
        const now = await new Promise(requestAnimationFrame);
        frames.push(now - last);
        last = now;
    }}
    t.draw = draw;
    return [draws, frames];
}}"""
ZOOMS = (1.0, 0.2, 0.01)


def predicted(name: str, iterations: int, **options: object) -> Part:
    """The page of a simulated job."""
    plan = make_plan(merge({}, {"iters": 10, **options}), elsewhere=True)
    found = foresee(plan, single=True, memory=False, iterations=iterations)
    return of_prediction(plan, name, found.trace)


def made_of(count: int, folder: Path) -> Part:
    """The page of a trace with this many events."""
    file = folder / "trace.json"
    synthetic(count).save(file)
    return of_trace(file)


def subjects(folder: Path) -> dict[str, Callable[[], Part]]:
    """What pages are measured."""
    gpt2 = {"data": "synthetic-tokens:length=64,vocabulary=50257,count=64", "batch": 8}
    return {
        "lenet, 10 iterations": lambda: predicted("lenet", 10, net="lenet", data="fashion-mini"),
        "googlenet, 8 devices": lambda: predicted(
            "googlenet",
            10,
            net="googlenet",
            data="synthetic:image=3x224x224,classes=1000,count=64",
            batch=32,
            devices="cpu:0-7",
            threads=1,
        ),
        "gpt2, pipeline on 2 hosts": lambda: predicted(
            "gpt2", 10, net="gpt2", devices="host0-1:cpu:0", parallel="pipeline=2,micro=4", **gpt2
        ),
        "50,000 events": lambda: made_of(50_000, folder),
        "200,000 events": lambda: made_of(200_000, folder),
    }


def measured(opened: Any, file: Path) -> dict[str, list[float]]:
    """One opening of a page: milliseconds until it can be used, of drawing, and between frames."""
    opened.goto(f"{file.as_uri()}#timeline")
    opened.wait_for_selector("#view-timeline[data-ready]")
    mark = "performance.getEntriesByName('ready-timeline')[0].startTime"
    row: dict[str, list[float]] = {"usable": [opened.evaluate(mark)], "draw": [], "frame": []}
    for zoom in ZOOMS:
        draws, frames = opened.evaluate(FRAMES, zoom)
        row["draw"] += draws
        row["frame"] += frames[1:]
    opened.goto("about:blank")
    return row


def told(name: str, fixed: dict[str, float], rows: list[dict[str, list[float]]]) -> dict[str, Any]:
    """The figures of a page, printed."""
    every = {key: [value for row in rows for value in row[key]] for key in rows[0]}
    usable, draws, frames = (sorted(every[key]) for key in ("usable", "draw", "frame"))
    found = fixed | {
        "usable_ms": round(statistics.median(usable)),
        "usable_spread_ms": [round(usable[0]), round(usable[-1])],
        "draw_ms": round(statistics.median(draws), 2),
        "draw_p95_ms": round(draws[int(0.95 * len(draws))], 2),
        "frame_ms": round(statistics.median(frames), 2),
        "frame_p95_ms": round(frames[int(0.95 * len(frames))], 2),
    }
    print(
        f"{name:<26} {found['events']:>8,.0f} events {found['mb']:>6.2f} MB "
        f"{found['bytes_an_event']:>5.1f} B/event ({found['over_1_mb']:.1f} beyond 1 MB)  "
        f"usable {found['usable_ms']:>5} ms  "
        f"draw {found['draw_ms']:>5.2f} ms (95%: {found['draw_p95_ms']:.2f})  "
        f"frame {found['frame_ms']:.1f} ms (95%: {found['frame_p95_ms']:.1f})",
        flush=True,
    )
    return found


def pages(names: list[str], turns: int) -> dict[str, Any]:
    """Measure the pages, in turns."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no browser: install chromium")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        fixed: dict[str, dict[str, float]] = {}
        files: dict[str, Path] = {}
        for number, (name, make) in enumerate(subjects(folder).items()):
            if names and not any(word in name for word in names):
                continue
            begun = time.perf_counter()
            part: Any = make()
            text = page(document([part]))
            events = part["timeline"]["count"]
            size = len(text.encode())
            own = max(0.0, (size - 1e6) / events)
            files[name] = folder / f"{number}.html"
            files[name].write_text(text)
            fixed[name] = {"events": events, "mb": round(size / 1e6, 3)}
            fixed[name] |= {"bytes_an_event": round(size / events, 1), "over_1_mb": round(own, 1)}
            print(f"made {name} in {time.perf_counter() - begun:.1f} s", flush=True)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.goto("about:blank")
        rows: dict[str, list[dict[str, list[float]]]] = {name: [] for name in fixed}
        for _ in range(turns):
            for name in fixed:
                rows[name].append(measured(opened, files[name]))
        browser.close()
        return {name: told(name, fixed[name], rows[name]) for name in fixed}


def live(seconds: float, turns: int, viewers: int) -> dict[str, Any]:
    """The speed of training without --live, with it unseen, and with viewers, in turns.

    Among the viewers is one that never reads; requests without the token and from another origin
    are answered with the status that is reported.
    """
    speeds: dict[str, list[float]] = {"without": [], "live": [], "viewed": []}
    refused: dict[str, int] = {}
    first = trained(seconds, "without", viewers, refused)
    print(f"{'without':<8} {first:8.1f} images/s (not counted)", flush=True)
    for turn in range(turns):
        for name in speeds if turn % 2 == 0 else reversed(speeds):
            speeds[name].append(trained(seconds, name, viewers, refused))
            print(f"{name:<8} {speeds[name][-1]:8.1f} images/s", flush=True)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = {name: round(medians[name] / medians["without"], 4) for name in ("live", "viewed")}
    spread = {name: [round(min(v), 1), round(max(v), 1)] for name, v in speeds.items()}
    print(f"of the speed without --live: {ratios} (aim: at least 0.99), refused with: {refused}")
    found = {"ratio": ratios, "images_per_second": medians, "spread": spread}
    return found | {"viewers": viewers, "refused": refused}


def trained(seconds: float, how: str, viewers: int, refused: dict[str, int]) -> float:
    """Images a second of a LeNet in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        words = training(run) + ([] if how == "without" else ["--live"])
        job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert job.stdout is not None
        address = ""
        if how != "without":
            told = (line.split() for line in job.stdout)
            address = next(words[1] for words in told if words[:1] == ["live:"])
        ends = threading.Event()
        deaf = []
        if how == "viewed":
            for _ in range(viewers):
                threading.Thread(target=watch, args=(address, ends), daemon=True).start()
            deaf.append(never_reads(address))
            bare = address.partition("?")[0]
            refused["without the token"] = status_of(bare)
            refused["from another origin"] = status_of(address, Origin="http://other.example")
        rows = rows_for(run / "metrics.jsonl", seconds)
        ends.set()
        for connection in deaf:
            connection.close()
        job.terminate()
        job.stdout.read()
        job.wait()
    return speed_of(rows)


def training(run: Path) -> list[str]:
    """The command that trains a LeNet for a long time."""
    words = [sys.executable, "-m", "purine", "train", "--net", "lenet", "--data"]
    words += ["fashion-mini", "--devices", "cpu:0-1", "--epochs", "1000", "--seed", "0"]
    return [*words, "--test-every", "1000000", "--save-every", "1000000", "--out", str(run)]


def in_windows(count: int) -> dict[str, Any]:
    """The speed of one run while the server of its page, which nobody opens, runs or is stopped.

    Windows of both take turns, so a slow second of the machine meets both alike.
    """
    rates: dict[signal.Signals, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "run" / "metrics.jsonl"
        job = subprocess.Popen(
            [*training(file.parent), "--live"], stdout=subprocess.DEVNULL, cwd=ROOT
        )
        try:
            rows_for(file, 3.0)
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text()
            (server,) = map(int, children.split())
            for turn in range(count):
                for sign in list(rates) if turn % 2 else reversed(list(rates)):
                    os.kill(server, sign)
                    rates[sign].append(window(file))
            os.kill(server, signal.SIGCONT)
        finally:
            job.terminate()
            job.wait()
    running, stopped = rates.values()
    ratio = statistics.median(running) / statistics.median(stopped)
    pairs = [one / other for one, other in zip(running, stopped, strict=True)]
    quartiles = [round(quartile, 4) for quartile in statistics.quantiles(pairs, n=4)]
    print(f"running over stopped: {ratio:.4f} of medians, {quartiles[1]:.4f} median of pairs")
    return {"ratio": round(ratio, 4), "quartiles_of_pairs": quartiles, "pairs": count}


def window(file: Path, seconds: float = 0.9) -> float:
    """Images a second between two rows of the metrics, which come every 10 iterations."""
    time.sleep(0.15)
    begun = last_row(file)
    time.sleep(seconds)
    ended = last_row(file)
    return 64 * (ended[0] - begun[0]) / (ended[1] - begun[1])


def last_row(file: Path) -> tuple[int, float]:
    """Iteration and seconds of the last complete row."""
    row = json.loads(file.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2])
    return row["iteration"], row["seconds"]


def rows_for(file: Path, seconds: float) -> list[tuple[int, float]]:
    """The metrics until `seconds` after the first row."""
    begun = None
    while True:
        time.sleep(0.2)
        if begun is None:
            begun = time.monotonic() if file.exists() else None
        elif time.monotonic() - begun > seconds:
            lines = file.read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            return [(row["iteration"], row["seconds"]) for row in rows if "lr" in row]


def speed_of(rows: list[tuple[int, float]]) -> float:
    """Images a second: the median over stretches of 10 iterations, without the first ones."""
    kept = rows[2:]
    if len(kept) < 2:
        sys.exit(f"only {len(rows)} lines of metrics were written: let it train for more --seconds")
    return statistics.median(64 * (b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(kept))


def watch(address: str, ends: threading.Event) -> None:
    """What the page does: the page once, then the state every second, and the curves."""
    base, _, token = address.partition("?")
    asked = [f"{base}{path}?{token}" for path in ("state", "curves")]
    try:
        urllib.request.urlopen(address).read()
        while not ends.wait(1.0):
            for one in asked:
                urllib.request.urlopen(one).read()
    except OSError:
        return  # the run has ended


def never_reads(address: str) -> socket.socket:
    """A viewer that asks for the page and does not read it."""
    url = urlsplit(address)
    connection = socket.create_connection((url.hostname, url.port))
    asked = f"GET /?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n"
    connection.sendall(asked.encode())
    return connection


def status_of(address: str, **headers: str) -> int:
    """The HTTP status of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", nargs="*", default=[], help="parts of names; all by default")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--live", action="store_true", help="measure what --live costs instead")
    parser.add_argument("--seconds", type=float, default=10.0, help="of training, each time")
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--windows", type=int, help="pairs of windows of one live run instead")
    options = parser.parse_args()
    if options.windows:
        print(json.dumps({"live_in_windows": in_windows(options.windows)}))
    elif options.live:
        print(json.dumps({"live": live(options.seconds, options.turns, options.viewers)}))
    else:
        print(json.dumps({"pages": pages(options.pages, options.turns)}))


if __name__ == "__main__":
    main()
