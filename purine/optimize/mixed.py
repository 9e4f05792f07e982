"""Mixed precision: which kinds of a net compute in a low precision, and the casts between them.

`PRECISION` is the whole policy. States stay float32 (parameters, statistics, and what solvers add),
and so do the blobs that a net reports or carries on: solvers, checkpoints and those who read
results see no difference. A blob is cast at most once in each direction, whoever reads it, and what
one op made in low precision is never cast for a neighbour that can take it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from purine.analysis.infer import complete, infer_op, spec_of
from purine.arguments import checked
from purine.autodiff import GRADIENT, losses_of
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Builder, Graph, Op
from purine.kinds.loss_scale import LOSS_SCALE, add_loss_scale
from purine.registry.kind import IMPLIED
from purine.registry.lookup import lookup
from purine.registry.sized import PREFIX as SIZED

__all__ = ["DTYPES", "PRECISION", "Class", "mixed", "precision_of"]

DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16"}
"""The low precisions by the names that people give them."""

Class: TypeAlias = Literal["low", "norm", "follow", "wide"]
"""How a kind takes its inputs of real numbers:

- `low`: all in low precision;
- `norm`: the first as it is; the others, its scale, shift and statistics, in float32;
- `follow`: all in low precision if one that was computed is, else as they are;
- `wide`: all in float32.
"""

_KINDS: Mapping[Class, str] = {
    "low": """
        Attention Conv Deconv InnerProduct
        aten._convolution aten.addbmm aten.addmm aten.addmv aten.baddbmm aten.bmm
        aten.conv1d aten.conv2d aten.conv3d aten.conv_transpose1d aten.conv_transpose2d
        aten.conv_transpose3d aten.convolution aten.einsum aten.linear aten.matmul aten.mm
        aten.mv aten.scaled_dot_product_attention
    """,
    "norm": """
        BatchNorm BatchNormTest
        aten._native_batch_norm_legit_functional aten._native_batch_norm_legit_no_training
        aten.batch_norm
    """,
    "follow": """
        Bias CenterCrop Concat Copy Crop CropGradient Dropout Eltwise Elu FixedBatch Flatten
        Gelu GlobalPool LayerNorm LeakyRelu Mirror PRelu Pool Prepend Relu Relu6 Reshape
        Scale Sigmoid Slice Split StopGradient Tanh Threshold Transpose
        aten._adaptive_avg_pool2d aten._to_copy aten._unsafe_view aten.abs
        aten.adaptive_avg_pool1d aten.adaptive_avg_pool2d aten.adaptive_max_pool2d aten.add
        aten.alias aten.avg_pool1d aten.avg_pool2d aten.cat aten.chunk aten.clamp aten.clone
        aten.constant_pad_nd aten.contiguous aten.detach aten.div aten.dropout aten.elu
        aten.expand aten.flatten aten.gelu aten.hardsigmoid aten.hardswish aten.hardtanh
        aten.index aten.index_select aten.layer_norm aten.leaky_relu aten.max_pool1d
        aten.max_pool2d aten.max_pool2d_with_indices aten.maximum aten.mean aten.minimum
        aten.mul aten.narrow aten.native_layer_norm aten.neg aten.pad aten.permute
        aten.pixel_shuffle aten.relu aten.relu6 aten.repeat aten.reshape aten.roll
        aten.select aten.sigmoid aten.silu aten.slice aten.split aten.split_with_sizes
        aten.squeeze aten.stack aten.sub aten.t aten.tanh aten.transpose aten.unbind
        aten.unflatten aten.unsqueeze aten.upsample_bilinear2d aten.upsample_nearest2d
        aten.view aten.where
    """,
    "wide": """
        Accuracy ArgMax CaffeBatchNorm CaffeBatchNormAlways CaffeBatchNormTest CaffeLstm
        CaffeRnn ContrastiveLoss CustomGradient Data Embedding EmbeddingPart EuclideanLoss
        Exp HingeLoss InfogainLoss LRN Log MVN MultinomialLogisticLoss Normalize Power
        RandomExponential RandomIntegers RandomMask RandomNormal RandomUniform Reduction
        ScalarLoss SigmoidCrossEntropyLoss Softmax SoftmaxLoss SumLoss
        aten._log_softmax aten._softmax aten.binary_cross_entropy_with_logits
        aten.cross_entropy_loss aten.cumsum aten.embedding aten.exp aten.group_norm aten.log
        aten.log_softmax aten.logsumexp aten.masked_fill aten.mse_loss
        aten.native_group_norm aten.nll_loss aten.nll_loss_forward aten.nll_loss_nd
        aten.norm aten.pow aten.prod aten.reciprocal aten.rsqrt aten.softmax aten.sqrt
        aten.sum aten.var aten.var_mean
    """,
}

PRECISION: Mapping[str, Class] = {
    kind: name for name, kinds in _KINDS.items() for kind in kinds.split()
}
"""The class of each kind, of all overloads of an ATen op alike. Kinds that are not here are wide.

Matrix products gain from low precision, and add up in float32 inside. Tables of embeddings are
wide because the gradients of a row are added up in their own precision. Layer norm computes its
statistics in float32 inside, whatever its input."""

_WIDE = "float32"


def precision_of(kind: str) -> Class:
    """The class of a kind by the table.

    >>> precision_of("Conv"), precision_of("sized.aten.add.Tensor"), precision_of("aten.erfinv")
    ('low', 'follow', 'wide')
    """
    own = kind.removeprefix(SIZED)
    return PRECISION.get(own) or PRECISION.get(".".join(own.split(".")[:2]), "wide")


@checked
def mixed(
    net: Graph,
    dtype: str = "bf16",
    *,
    loss_scale: float | None = None,
    growth_interval: int = 2000,
) -> Graph:
    """The net with the kinds of a table in low precision and its states in float32.

    To be used before `backward`. `dtype` is `bf16` or `fp16`. A net in `fp16` has a loss
    scale, which starts at `loss_scale` (by default 65536), is halved in an iteration with a
    gradient that is not finite, whose updates do not count, and is doubled after `growth_interval`
    iterations without. In `bf16` there is none unless `loss_scale` is given.

    >>> from purine.zoo import lenet
    >>> net = mixed(lenet(batch=2))
    >>> net.blobs["conv1"].dtype, net.blobs["conv1/weight"].dtype, net.blobs["loss"].dtype
    ('bfloat16', 'float32', 'float32')
    """
    if dtype not in DTYPES:
        raise ConfigError(
            f"there is no precision {dtype!r} to mix with float32",
            expected=" or ".join(DTYPES),
            found=repr(dtype),
            remedy="use one of these, or leave mixed out to train in float32",
        )
    if loss_scale is not None and not (math.isfinite(loss_scale) and loss_scale > 0):
        raise _out_of_range("loss_scale", loss_scale, "a number above 0")
    if growth_interval < 1:
        raise _out_of_range("growth_interval", growth_interval, "at least 1")
    net = complete(net)
    _refuse(net)
    builder = _Casts(net, DTYPES[dtype], dtype).builder()
    if loss_scale is not None or dtype == "fp16":
        losses = [net.blobs[name] for name in losses_of(net)] or list(net.blobs.values())
        add_loss_scale(
            builder,
            scale=2.0**16 if loss_scale is None else loss_scale,
            interval=growth_interval,
            location=losses[0].location,
        )
    return builder.graph()


class _Casts:
    """One net while its casts are put in. Names are those of the net that is given."""

    def __init__(self, net: Graph, dtype: str, suffix: str) -> None:
        self.net = net
        self.dtype = dtype
        self.suffix = suffix
        self.made = Builder(net)
        self.made.ops.clear()
        self.kept = {*net.outputs, *(state.next for state in net.states.values())}
        self.low: dict[str, str] = {}
        """By blob, what holds it in low precision."""
        self.wide: dict[str, str] = {}
        """By blob that was computed in low precision, what holds it in float32."""
        self.computed: set[str] = set()
        """Blobs that were computed in low precision."""

    def builder(self) -> Builder:
        for name in self.net.order:
            self._add(self.net.ops[name])
        return self.made

    def _add(self, op: Op) -> None:
        if lookup(op).function is None:
            self.made.add(op)
            return
        inputs = self._inputs(op)
        specs = infer_op(
            replace(op, inputs=inputs), [spec_of(self.made.blobs[name]) for name in inputs]
        )
        outputs, back = [], []
        for name, spec in zip(op.outputs, specs, strict=True):
            if name == NOTHING or spec is None or spec.dtype != self.dtype:
                outputs.append(name)
                continue
            self.computed.add(name)
            self.low[name] = name
            blob = self.made.blobs[name]
            if name in self.kept:
                self.low[name] = self.made.fresh(f"{name}/{self.suffix}")
                self.wide[name] = name
                back.append(name)
            self.made.blobs[self.low[name]] = replace(blob, name=self.low[name], dtype=self.dtype)
            outputs.append(self.low[name])
        self.made.add(replace(op, inputs=inputs, outputs=tuple(outputs)))
        for name in back:
            self._cast(self.low[name], _WIDE, name, op)

    def _inputs(self, op: Op) -> tuple[str, ...]:
        """What the op reads instead of its inputs."""
        dtypes = [self.net.blobs[name].dtype for name in op.inputs]
        known = "wide" if "float64" in dtypes else precision_of(op.kind)
        real = [dtype == _WIDE for dtype in dtypes]
        if op.kind.startswith(SIZED):  # of the blob that tells the batch, only the size counts
            real[-1 - sum(name in IMPLIED for name in lookup(op).inputs)] = False
        as_low = known == "low" or (known == "follow" and not self.computed.isdisjoint(op.inputs))
        first = op.inputs[0] if op.inputs else NOTHING
        found = []
        for place, (name, is_real) in enumerate(zip(op.inputs, real, strict=True)):
            if not is_real:
                found.append(self.low.get(name, name) if name in self.computed else name)
            elif known == "norm" and place == 0:
                found.append(self.low[first] if first in self.computed else first)
            else:
                found.append(self._as_low(name, op) if as_low else self._as_wide(name, op))
        return tuple(found)

    def _as_low(self, name: str, op: Op) -> str:
        if name not in self.low and not self._draw_low(name):
            self.low[name] = self.made.fresh(f"{name}/{self.suffix}")
            self._cast(name, self.dtype, self.low[name], op)
        return self.low[name]

    def _as_wide(self, name: str, op: Op) -> str:
        if name not in self.computed:
            return name
        if name not in self.wide:
            self.wide[name] = self.made.fresh(f"{name}/fp32")
            self._cast(self.low[name], _WIDE, self.wide[name], op)
        return self.wide[name]

    def _draw_low(self, name: str) -> bool:
        """Let a mask that nobody reads yet be drawn in low precision."""
        drawn = self.net.producers.get(name)
        if drawn is None or drawn.kind.removeprefix(SIZED) != "RandomMask" or name in self.kept:
            return False
        if any(name in other.inputs for other in self.made.ops.values()):
            return False
        settings = {**drawn.attributes, "dtype": self.dtype}
        self.made.ops[drawn.name] = replace(self.made.ops[drawn.name], attributes=settings)
        self.made.blobs[name] = replace(self.made.blobs[name], dtype=self.dtype)
        self.low[name] = name
        self.computed.add(name)
        return True

    def _cast(self, name: str, dtype: str, result: str, op: Op) -> None:
        """Add the cast of a blob, where the blob is."""
        blob = self.made.blobs[name]
        if result not in self.made.blobs:
            self.made.blob(result, blob.shape, dtype, blob.location, layout=blob.layout)
        self.made.op(
            self.made.fresh(f"{result}/cast") if result in self.made.ops else result,
            "aten._to_copy",
            [name],
            [result],
            {"dtype": dtype},
            location=blob.location,
            lane=op.lane,
        )


def _refuse(net: Graph) -> None:
    """Refuse what is not a net of float32."""
    if any(name.startswith(f"{GRADIENT}/") for name in net.blobs):
        raise GraphError(
            "the graph has gradients already, and the casts belong before them",
            expected="a net of forward ops",
            found=f"blobs under {GRADIENT}/",
            remedy="use the order sgd(backward(mixed(net)))",
        )
    low = next((blob for blob in net.blobs.values() if blob.dtype in DTYPES.values()), None)
    if low is not None or LOSS_SCALE in net.blobs:
        raise GraphError(
            "the net has blobs of low precision already",
            where=low.where if low else None,
            blob=low.name if low else LOSS_SCALE,
            expected="a net in float32",
            found=f"blob {low}" if low else f"a state {LOSS_SCALE}",
            remedy="call mixed once, on the net in float32",
        )


def _out_of_range(option: str, value: float, expected: str) -> ConfigError:
    return ConfigError(
        f"{option} is {value}",
        expected=expected,
        found=str(value),
        remedy=f"change {option}, or leave it out",
    )
