"""Asynchronous training: one transform, and a short file for each scheme."""

from purine.parallel.serve.rule import RULES, Asynchronous
from purine.parallel.serve.serve import serve

__all__ = ["RULES", "Asynchronous", "serve"]
