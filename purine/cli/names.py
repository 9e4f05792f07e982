"""The names that help and completion list, without importing what they stand for.

Help comes at once only where nothing imports torch; a test compares these names with the registries
(`purine.zoo.NETS`, `purine.solvers.SOLVERS`, `purine.solvers.POLICIES`, `purine.data.open`,
`purine.job.config`, `purine.lowering.LOWERING`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["DATA", "NETS", "PASSES", "POLICIES", "PRECISIONS", "SOLVERS", "complete"]

NETS = (
    *("alexnet", "densenet121", "googlenet", "gpt2", "lenet", "mlp", "mobilenet_v2", "nin"),
    *("resnet50", "unet", "vgg16", "vit"),
)
SOLVERS = ("sgd", "adam", "adamw", "adagrad", "adadelta", "rmsprop", "lars")
POLICIES = ("fixed", "step", "multistep", "exp", "inv", "poly", "cosine", "sigmoid")
DATA = ("fashion-mini", "synthetic", "synthetic-masks", "synthetic-tokens")
PASSES = ("aliases", "collectives", "shares", "packing", "segments")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def complete(names: Sequence[str]) -> Callable[[str], list[str]]:
    """What the shell may complete a word to, of these names.

    >>> complete(SOLVERS)("ada")
    ['adam', 'adamw', 'adagrad', 'adadelta']
    """

    def completed(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return completed
