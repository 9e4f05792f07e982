"""The kinds of ops: one file per family, with the functions that add their ops to a net."""

import purine.kinds.add_at
import purine.kinds.adjoin
import purine.kinds.asynchronous
import purine.kinds.average
import purine.kinds.batch_reduce
import purine.kinds.caffe
import purine.kinds.compress
import purine.kinds.ctc
import purine.kinds.custom_gradient
import purine.kinds.fused
import purine.kinds.grouped
import purine.kinds.loss_scale
import purine.kinds.rates
import purine.kinds.sync_norm
import purine.kinds.update
import purine.kinds.versions  # noqa: F401  (these register kinds or kernels, and have no layers)
from purine.kinds.activation import elu, gelu, leaky_relu, relu, relu6, sigmoid, tanh
from purine.kinds.attention import attention
from purine.kinds.conv import conv, deconv
from purine.kinds.data import Data
from purine.kinds.eltwise import eltwise
from purine.kinds.image import center_crop, crop, mirror, normalize
from purine.kinds.linear import bias, embedding, inner_product, scale
from purine.kinds.loss import (
    accuracy,
    euclidean_loss,
    hinge_loss,
    sigmoid_cross_entropy_loss,
    softmax,
    softmax_loss,
)
from purine.kinds.net import Net, Var
from purine.kinds.norm import batch_norm, layer_norm, lrn
from purine.kinds.pool import global_pool, pool
from purine.kinds.random import dropout
from purine.kinds.shape import concat, flatten, prepend, reshape, slice, split, transpose
from purine.registry.fillers import fill
from purine.registry.kind import kind

__all__ = [
    "Data",
    "Net",
    "Var",
    "accuracy",
    "attention",
    "batch_norm",
    "bias",
    "center_crop",
    "concat",
    "conv",
    "crop",
    "deconv",
    "dropout",
    "eltwise",
    "elu",
    "embedding",
    "euclidean_loss",
    "fill",
    "flatten",
    "gelu",
    "global_pool",
    "hinge_loss",
    "inner_product",
    "kind",
    "layer_norm",
    "leaky_relu",
    "lrn",
    "mirror",
    "normalize",
    "pool",
    "prepend",
    "relu",
    "relu6",
    "reshape",
    "scale",
    "sigmoid",
    "sigmoid_cross_entropy_loss",
    "slice",
    "softmax",
    "softmax_loss",
    "split",
    "tanh",
    "transpose",
]
