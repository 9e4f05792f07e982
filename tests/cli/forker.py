"""Runs command lines in forked children: a program for tests that need many short-lived runs.

It imports everything once and never runs a kernel itself (a plan is made with fake tensors alone),
so a child begins within milliseconds with nothing inherited but code. For each line of JSON on
stdin, a list of arguments, it prints the child's process id and, when the child has ended, its
status as `os.waitpid` gives it.
"""

from __future__ import annotations

import json
import os
import sys

import purine.cli.progress  # noqa: F401  (which the command imports when it is called)
from purine.cli import main
from purine.job import Job, make_plan


def serve() -> None:
    make_plan(Job(net="mlp"))
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1):
                os.dup2(nowhere, descriptor)
            try:
                main(json.loads(line))
            except SystemExit as end:
                os._exit(int(end.code or 0))
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    serve()
