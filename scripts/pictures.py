"""Pictures of the page for the documents, from a real run: trains, views, and takes screenshots.

    python scripts/pictures.py

Writes docs/pictures/*.png and prints their sizes. Needs a Chromium and Playwright (`.[dev]`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 60_000
"""Bytes of a picture: documents load quickly."""
TIMELINE = "document.querySelector('canvas.timeline').timeline"
JOB = "--net lenet --data fashion-mini --batch 64 --epochs 2 --lr 0.02 --seed 0"
DEVICES = "--devices cpu:0-1 --share-cores --trace --trace-iters 10 --log-every 4"
COLOURS = 256
"""Colours of a picture: a page has few, and its file is a third as large."""
SIZES = {
    "overview": (1120, 880),
    "graph": (1400, 800),
    "timeline": (1120, 530),
    "memory": (1120, 560),
    "traffic": (1120, 540),
}
READY = {
    "graph": """() => {
        const search = document.querySelector(".pg-search");
        search.value = "conv2";
        search.dispatchEvent(new Event("input"));
        search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
        search.value = "";
        search.dispatchEvent(new Event("input"));
    }""",
    "timeline": f"""() => {{
        const t = {TIMELINE}, e = t.events;
        t.look(e.iterations[4][1], e.iterations[7][1], 0);
        t.choose(e.eventAt(e.names.indexOf("replica0/grad/conv2/convolution_backward"), 5));
    }}""",
}
"""What is done with a view before its picture is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--run", type=Path, help="a run to show instead of training one")
    options = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no browser: install chromium")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        run = options.run.resolve() if options.run else Path(temporary) / "runs" / "lenet"
        if options.run is None:
            purine("train", *f"{JOB} {DEVICES}".split(), "--out", str(run), folder=temporary)
        file = Path(temporary) / "run.html"
        purine(
            "view", os.path.relpath(run, temporary), "--out", file, "--no-open", folder=temporary
        )
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        options.out.mkdir(parents=True, exist_ok=True)
        for key in SIZES:
            take(browser, file, key, options.out / f"{key}.png")
        take(browser, file, "timeline", options.out / "timeline-dark.png", "dark")
        browser.close()


def purine(*words: object, folder: str) -> None:
    """Run a command of this checkout, where a run has a short name."""
    command = [sys.executable, "-m", "purine", *map(str, words)]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def take(browser: Any, file: Path, key: str, out: Path, scheme: str = "light") -> None:
    """A picture of one view."""
    width, height = SIZES[key]
    size = {"width": width, "height": height}
    opened = browser.new_page(viewport=size, color_scheme=scheme)
    opened.goto(f"{file.as_uri()}#{key}")
    opened.wait_for_selector(f"#view-{key}[data-ready]")
    if key in READY:
        opened.evaluate(READY[key])
    opened.wait_for_timeout(300)
    opened.screenshot(path=out)
    opened.close()
    with Image.open(out) as image:
        small = image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    small.save(out, optimize=True)
    written = out.stat().st_size
    print(f"{out.name}: {written:,} bytes", flush=True)
    if written > LARGEST:
        sys.exit(f"{out} is larger than {LARGEST:,} bytes: make it smaller")


if __name__ == "__main__":
    main()
