"""From a step to what one machine runs: an ordered tuple of named, verified passes."""

from purine.lowering.lowered import Lowered
from purine.lowering.passes import LOWERING, Options, Pass, lower, options_for

__all__ = ["LOWERING", "Lowered", "Options", "Pass", "lower", "options_for"]
