"""Parameter updates of solvers, as kinds: one op computes the next value of one parameter.

The formula of each solver is written once, with the conventions of `torch.optim`. The variants that
work in place or on many parameters are derived from it (`_declare`, `_arithmetic`). The learning
rate is a float64 scalar; everything else is computed in the dtype of the weight.
"""

from purine.kinds.update.adaptive import AdaDeltaUpdate, AdaGradUpdate, AdamUpdate, RmsPropUpdate
from purine.kinds.update.gradients import AddScaled, ClipGradient, GlobalNorm
from purine.kinds.update.sgd import LarsUpdate, MomentumUpdate, SgdUpdate

__all__ = [
    "AdaDeltaUpdate",
    "AdaGradUpdate",
    "AdamUpdate",
    "AddScaled",
    "ClipGradient",
    "GlobalNorm",
    "LarsUpdate",
    "MomentumUpdate",
    "RmsPropUpdate",
    "SgdUpdate",
]
