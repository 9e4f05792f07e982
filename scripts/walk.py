"""Lists the files between a command and a kernel: what a reader of that path has to open.

    python scripts/walk.py                      # `purine train --devices cpu:0-1`, two iterations
    python scripts/walk.py --all                # every file of the package that ran at all
    python scripts/walk.py --write docs/design.md

The command runs in this process under a profiler. A file is on the path if one of its functions is
on the call stack when a landmark is reached. The landmarks are the functions that make, transform,
lower, compile or run a step. The net itself, rules that only check a graph, and helpers that give
values (names, fillers, rules of shapes) are not on the path; `--all` counts them too.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LANDMARKS: dict[str, tuple[str, ...]] = {
    "cli": ("main", "train"),
    "job": ("make_plan", "train"),
    "recipe": ("compose", "make_step"),
    "data": ("prepare",),
    "autodiff": ("backward",),
    "solvers": ("sgd",),
    "parallel": ("accumulate", "replicate"),
    "placement": ("insert_copies",),
    "analysis": ("check", "peak_memory"),
    "lowering": (),
    "core": ("compile_plan", "complete"),
    "runtime": ("compile_program", "run"),
    "compile": ("compile_ops",),
    "kinds": (),
}
"""The landmarks of each package by the names of functions; without names, all public ones."""

CHECKS = ("arguments.py", "lowering/rules.py")
"""Files on the stack that only check what passes through them."""


TELLING = ("has_workers", "hosts_of")
"""Functions of packages without named landmarks that only tell something of a graph."""


class Walk:
    """The files on the path, in the order in which the run reaches them."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.ran: dict[str, None] = {}
        self.seen: set[Any] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self.seen:
            return
        self.seen.add(code)
        file = module_of(frame)
        if file is None or not code.co_flags & inspect.CO_NEWLOCALS:
            return  # another package, or a module or class that is being defined
        self.ran.setdefault(file)
        names = LANDMARKS.get(file.split("/")[0].removesuffix(".py"))
        if names is None or code.co_name.startswith(("_", "<")):
            return
        if code.co_name not in names if names else code.co_name in TELLING:
            return
        if file.startswith("kinds/") and threading.current_thread() is threading.main_thread():
            return  # shapes and gradients, not the step that runs
        stack = []
        current: FrameType | None = frame
        while current is not None:
            if current.f_code.co_flags & inspect.CO_NEWLOCALS:
                stack.append(module_of(current))
            current = current.f_back
        for caller in reversed(stack):
            if caller is not None and caller not in CHECKS and "__init__" not in caller:
                self.files.setdefault(caller)


def module_of(frame: FrameType) -> str | None:
    """The file of a frame, relative to the package; None for files of others."""
    path = frame.f_code.co_filename
    prefix = f"{ROOT / 'purine'}/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None


def walk(command: Sequence[str]) -> Walk:
    """Run a command of `purine` and note the files it passes."""
    from purine.cli import main

    noted = Walk()
    threading.setprofile(noted)
    sys.setprofile(noted)
    try:
        sys.argv = ["purine", *command]
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return noted


def table(files: Sequence[str]) -> str:
    """The files with the first lines of their docstrings, as a table of Markdown."""
    rows = ["| file | what it is |", "|---|---|"]
    for file in files:
        docstring = ast.get_docstring(ast.parse((ROOT / "purine" / file).read_text())) or ""
        first, _, _ = docstring.partition("\n\n")
        rows.append(f"| `purine/{file}` | {' '.join(first.split())} |")
    return "\n".join(rows)


def write(document: Path, noted: Walk) -> None:
    """Replace the table between the marks of a document."""
    count = f"{len(noted.files)} files. The run calls functions of {len(noted.ran)} files in all."
    before, begin, rest = document.read_text().partition("<!-- walk -->\n")
    _, end, after = rest.partition("<!-- /walk -->\n")
    assert end, f"{document} has no <!-- walk --> ... <!-- /walk -->"
    document.write_text(f"{before}{begin}{table([*noted.files])}\n\n{count}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="list every file that ran")
    parser.add_argument("--write", type=Path, help="a document whose table to replace")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "--devices", "cpu:0-1", "--share-cores", "--iters", "2", "--out"]
        noted = walk([*command, f"{folder}/a"])
    files = list(noted.ran if arguments.all else noted.files)
    if arguments.write is not None:
        write(arguments.write, noted)
    print(*files, sep="\n")
    packages = {file.split("/")[0] for file in files}
    print(f"{len(files)} files in {len(packages)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
