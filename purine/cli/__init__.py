"""The command line: arguments and printing only; what it starts is in `purine.job`."""

from purine.cli.app import main

__all__ = ["main"]
