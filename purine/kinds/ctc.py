"""The loss of connectionist temporal classification, sample by sample.

What torch saves for the gradient is as large as the longest target, which is data. So the gradient
runs the forward once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from purine.registry.gradient import RULES, Emit, Pull, Rule, lower_unchanged
from purine.registry.kind import kind, opaque

aten = torch.ops.aten


@kind
@opaque(lambda scores, *rest, **settings: scores.new_empty(scores.shape[1]))
def CtcLosses(
    scores: Tensor,
    labels: Tensor,
    times: Tensor,
    counts: Tensor,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """The loss of each sample: scores [T, N, K] are log probabilities, labels are [N, L].

    `times` and `counts` are how many of the T steps and of the L labels a sample has.
    `zero_infinity` lets samples whose labels do not fit into their steps count for nothing.
    """
    return torch.ctc_loss(scores, labels, times, counts, blank, 0, zero_infinity)


@kind
@opaque(lambda cotangent, scores, *rest, **settings: torch.empty_like(scores))
def CtcLossesGradient(
    cotangent: Tensor,
    scores: Tensor,
    labels: Tensor,
    times: Tensor,
    counts: Tensor,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """The gradient of the scores."""
    given = scores, labels, times, counts
    losses, alpha = aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    if zero_infinity:
        cotangent = cotangent.where(losses != math.inf, 0)
    settings = blank, zero_infinity
    gradient: Tensor = aten._ctc_loss_backward.Tensor(cotangent, *given, losses, alpha, *settings)
    return gradient


def _pull(emit: Emit, pull: Pull) -> Sequence[str | None]:
    inputs = [pull.cotangent, *pull.op.inputs]
    return (*emit("CtcLossesGradient", inputs, pull.op.attributes), None, None, None)


RULES["CtcLosses"] = Rule(lower_unchanged, _pull)
