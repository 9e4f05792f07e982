"""Networks to start from: one file each, a function that returns a graph."""

from collections.abc import Callable, Mapping

from purine.graph import Graph
from purine.zoo.alexnet import alexnet
from purine.zoo.densenet121 import densenet121
from purine.zoo.googlenet import googlenet
from purine.zoo.gpt2 import gpt2
from purine.zoo.lenet import lenet
from purine.zoo.mlp import mlp
from purine.zoo.mobilenet_v2 import mobilenet_v2
from purine.zoo.nin import nin
from purine.zoo.resnet50 import resnet50
from purine.zoo.unet import unet
from purine.zoo.vgg16 import vgg16
from purine.zoo.vit import vit

__all__ = [
    "NETS",
    "alexnet",
    "densenet121",
    "googlenet",
    "gpt2",
    "lenet",
    "mlp",
    "mobilenet_v2",
    "nin",
    "resnet50",
    "unet",
    "vgg16",
    "vit",
]

NETS: Mapping[str, Callable[..., Graph]] = {name: globals()[name] for name in __all__[1:]}
"""The nets by the names the command line knows."""
