"""Layers of torch that read values on the host, in forms that can be traced.

While a module is traced, batch norm that averages over all batches and the loss of connectionist
temporal classification are computed by tensors alone. Products of groups of rows, as layers of
experts have them, become an op of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from purine.errors import ConfigError
from purine.importers.torch.replaced import replaced

if TYPE_CHECKING:
    from purine.importers.torch.graph import Translation

__all__ = ["FUNCTIONS", "LAYERS", "traceable_layers"]


@contextmanager
def traceable_layers() -> Iterator[None]:
    """Let layers that read values on the host do without."""
    batch_norm = nn.modules.batchnorm._BatchNorm
    with replaced([(batch_norm, "forward", _batch_norm(batch_norm.forward))]):
        yield


def _batch_norm(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def batch_norm(self: Any, input: Tensor) -> Tensor:
        """`momentum=None`: the statistics are the mean over all batches so far."""
        count = self.num_batches_tracked
        if self.momentum is not None or count is None or not self.training:
            return forward(self, input)
        self._check_input_dim(input)
        count.add_(1)
        mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        y = F.batch_norm(input, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            self.running_mean.add_((mean - self.running_mean) / count)
            self.running_var.add_((var - self.running_var) / count)
        return y

    return batch_norm


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:
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
    losses = torch.ops.purine.ctc_losses(log_probs, targets, times, counts, blank, zero_infinity)
    if reduction in ("mean", 1):
        return (losses / counts.clamp(min=1).to(losses.dtype)).mean()
    if reduction in ("sum", 2):
        return losses.sum()
    return losses[0] if alone else losses


def _grouped_mm(x: Tensor, weight: Tensor, offs: Tensor | None = None, **more: Any) -> Tensor:
    """Rows times the matrix of their group; torch's own can be traced in bfloat16 only."""
    if (
        (x.dim(), weight.dim()) != (2, 3)
        or offs is None
        or any(v is not None for v in more.values())
    ):
        return torch._grouped_mm(x, weight, offs, **more)
    return torch.ops.purine.grouped_product(x, weight, offs)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_grouped_mm": _grouped_mm,
    "ctc_loss": _ctc_loss,
    "grouped_mm": _grouped_mm,
}
"""Functions of torch by their names, in forms that can be traced."""


def _grouped_product(t: Translation, node: Node) -> bool:
    inputs = [t.blobs[value] for value in node.args if isinstance(value, Node)]
    t.emit(node, "GroupedProduct", inputs, [node])
    return True


def _ctc_losses(t: Translation, node: Node) -> bool:
    inputs = [t.blobs[value] for value in node.args[:4]]
    settings = {name: t.argument(node, name) for name in ("blank", "zero_infinity")}
    t.emit(node, "CtcLosses", inputs, [node], settings)
    return True


LAYERS: Mapping[str, Callable[[Translation, Node], bool]] = {
    "purine.ctc_losses": _ctc_losses,
    "purine.grouped_product": _grouped_product,
    "transformers.grouped_mm_fallback": _grouped_product,
}
"""How nodes of layers become ops; False leaves them to the general way."""
