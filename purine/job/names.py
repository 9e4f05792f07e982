"""Names that the help lists and the shell completes, written out so that neither imports torch.

A test compares them with the registries: `purine.zoo.NETS`, `purine.solvers.SOLVERS`,
`purine.solvers.POLICIES`, `purine.data.open` and `purine.lowering.LOWERING`.
"""

from __future__ import annotations

__all__ = ["DATA", "NETS", "PASSES", "POLICIES", "SOLVERS"]

NETS = (
    *("alexnet", "densenet121", "googlenet", "gpt2", "lenet", "mlp", "mobilenet_v2", "nin"),
    *("resnet50", "unet", "vgg16", "vit"),
)
SOLVERS = ("sgd", "adam", "adamw", "adagrad", "adadelta", "rmsprop", "lars")
POLICIES = ("fixed", "step", "multistep", "exp", "inv", "poly", "cosine", "sigmoid")
DATA = ("fashion-mini", "synthetic", "synthetic-masks", "synthetic-tokens")
PASSES = ("hosts", "aliases", "collectives", "shares", "products", "packing", "segments")
