"""Layers of torch that read values on the host, in forms that can be traced.

While a module is traced, batch norm with a cumulative average and the CTC loss are computed by
tensors alone. Grouped matrix products, as in layers of experts, become an op of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from purine.errors import ConfigError
from purine.graph import Attribute
from purine.importers.torch.emitter import Emitter
from purine.importers.torch.tracing import AnyFunction, current

__all__ = ["FUNCTIONS", "LAYERS", "cumulative_batch_norm"]


def cumulative_batch_norm(original: AnyFunction) -> AnyFunction:
    """The forward of batch norm without `float(num_batches_tracked)`."""

    def forward(self: nn.modules.batchnorm._BatchNorm, input: Tensor) -> object:
        """`momentum=None`: the statistics are the mean over all batches so far."""
        trace, count = current(), self.num_batches_tracked
        mean, var = self.running_mean, self.running_var
        if (
            trace is None
            or not trace.in_forward
            or self.momentum is not None
            or count is None
            or mean is None
            or var is None
            or not self.training
        ):
            return original(self, input)
        check: AnyFunction = self._check_input_dim
        check(input)
        count.add_(1)
        batch_mean, batch_var = torch.zeros_like(mean), torch.zeros_like(var)
        y = F.batch_norm(input, batch_mean, batch_var, self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            mean.add_((batch_mean - mean) / count)
            var.add_((batch_var - var) / count)
        return y

    return forward


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> object:
    alone = log_probs.dim() == 2
    if alone:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    if targets.dim() != 2:
        raise ConfigError(
            "the loss takes the labels of all samples in one row",
            expected="targets of ctc_loss as [N, L], a row for each sample",
            found=f"targets {list(targets.shape)}",
            remedy="fill the labels of a sample up to L with zeros; target_lengths tells theirs",
        )
    times, counts = (
        torch.as_tensor(value, dtype=torch.int64, device=log_probs.device).reshape(-1)
        for value in (input_lengths, target_lengths)
    )
    losses: Tensor = torch.ops.purine.CtcLosses(
        log_probs, targets, times, counts, blank=blank, zero_infinity=zero_infinity
    )
    if reduction in ("mean", 1):
        return (losses / counts.clamp(min=1).to(losses.dtype)).mean()
    if reduction in ("sum", 2):
        return losses.sum()
    return losses[0] if alone else losses


def _grouped_mm(x: Tensor, weight: Tensor, offs: Tensor | None = None, **more: object) -> object:
    """Rows times the matrix of their group; torch's own can be traced in bfloat16 only."""
    grouped: AnyFunction = torch._grouped_mm
    if (
        (x.dim(), weight.dim()) != (2, 3)
        or offs is None
        or any(v is not None for v in more.values())
    ):
        return grouped(x, weight, offs, **more)
    return torch.ops.purine.GroupedProduct(x, weight, offs)


FUNCTIONS: Mapping[str, AnyFunction] = {
    "_grouped_mm": _grouped_mm,
    "ctc_loss": _ctc_loss,
    "grouped_mm": _grouped_mm,
}
"""Functions of torch, by name, that a `Branches` mode calls in place of torch's own."""


def _grouped_product(t: Emitter, node: Node) -> bool:
    inputs = [t.blobs[value] for value in node.args if isinstance(value, Node)]
    t.emit(node, "GroupedProduct", inputs, [node])
    return True


def _ctc_losses(t: Emitter, node: Node) -> bool:
    inputs = [t.blobs[value] for value in node.args[:4] if isinstance(value, Node)]
    settings: dict[str, Attribute] = {
        "blank": int(t.number(node, "blank")),
        "zero_infinity": bool(t.argument(node, "zero_infinity")),
    }
    t.emit(node, "CtcLosses", inputs, [node], settings)
    return True


LAYERS: Mapping[str, Callable[[Emitter, Node], bool]] = {
    "purine.CtcLosses": _ctc_losses,
    "purine.GroupedProduct": _grouped_product,
    "transformers.grouped_mm_fallback": _grouped_product,
}
"""How nodes of layers become ops; False leaves them to the general rule."""
