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
from purine.registry.kind import kind

aten = torch.ops.aten


@torch.library.custom_op("purine::ctc_losses", mutates_args=())
def ctc_losses(
    scores: Tensor, labels: Tensor, times: Tensor, counts: Tensor, blank: int, zero_infinity: bool
) -> Tensor:
    return torch.ctc_loss(scores, labels, times, counts, blank, 0, zero_infinity)


@ctc_losses.register_fake
def _(scores: Tensor, *rest: object) -> Tensor:
    return scores.new_empty(scores.shape[1])


@torch.library.custom_op("purine::ctc_losses_gradient", mutates_args=())
def ctc_losses_gradient(
    cotangent: Tensor,
    scores: Tensor,
    labels: Tensor,
    times: Tensor,
    counts: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    given = scores, labels, times, counts
    losses, alpha = aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    if zero_infinity:
        cotangent = cotangent.where(losses != math.inf, 0)
    settings = blank, zero_infinity
    gradient: Tensor = aten._ctc_loss_backward.Tensor(cotangent, *given, losses, alpha, *settings)
    return gradient


@ctc_losses_gradient.register_fake
def _(cotangent: Tensor, scores: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(scores)


@kind
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
    losses: Tensor = ctc_losses(scores, labels, times, counts, blank, zero_infinity)
    return losses


@kind
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
    gradient: Tensor = ctc_losses_gradient(cotangent, *given, blank, zero_infinity)
    return gradient


def _pull(emit: Emit, pull: Pull) -> Sequence[str | None]:
    inputs = [pull.cotangent, *pull.op.inputs]
    (gradient,) = emit("CtcLossesGradient", inputs, pull.op.attributes)
    return gradient, None, None, None


RULES["CtcLosses"] = Rule(lower_unchanged, _pull)
