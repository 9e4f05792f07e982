"""One or more ops of every kind, with inputs to run them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.graph import Attribute, Op
from purine.registry.kind import Kernel
from purine.registry.lookup import lookup

__all__ = ["ATEN_CASES", "CASES", "NOT_DIFFERENTIATED", "Case"]


@dataclass(frozen=True)
class Case:
    """An op of a kind: inputs without the implied ones, attributes, and what to differentiate.

    `wanted` are the inputs that have a gradient (by default those that are real), `used` the
    results that the loss depends on. `oracle` replaces the kind's own function where torch's
    autograd does not take it.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    wanted: tuple[int, ...] | None = None
    used: tuple[int, ...] = (0,)
    oracle: Callable[..., Tensor] | None = None

    def __str__(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        shapes = "_".join("x".join(map(str, value.shape)) for value in self.inputs)
        return f"{self.kind}({shapes};{settings})".replace(" ", "")

    @property
    def sources(self) -> tuple[int, ...]:
        """The places of the inputs that have a gradient."""
        if self.wanted is not None:
            return self.wanted
        return tuple(i for i, value in enumerate(self.inputs) if value.is_floating_point())

    def op(self) -> Op:
        names = tuple(f"input{i}" for i in range(len(self.inputs)))
        return Op("op", self.kind, names, (), self.attributes)

    def kernel(self) -> Kernel:
        """The function of all inputs; those that are implied come from `implied`."""
        return lookup(self.op()).bind(self.op())

    def implied(self) -> tuple[Tensor, ...]:
        names = lookup(self.op()).inputs
        return tuple(
            torch.zeros((), dtype=torch.int64) for n in names if n in ("seed", "iteration")
        )


_generator = torch.Generator().manual_seed(0)


def real(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, generator=_generator, dtype=torch.float64) + 0.5


def whole(limit: int, *shape: int) -> Tensor:
    return torch.randint(limit, shape, generator=_generator)


def _trained_batch_norm(x: Tensor, weight: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)


def _ctc_losses(scores: Tensor, labels: Tensor, times: Tensor, counts: Tensor) -> Tensor:
    return F.ctc_loss(scores, labels, times, counts, reduction="none")


def _grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    starts = [0, *ends.tolist()]
    parts = [x[a:b] @ w for a, b, w in zip(starts, ends.tolist(), weight, strict=False)]
    return torch.cat([*parts, x.new_zeros(x.shape[0] - starts[-1], weight.shape[2])])


IMAGE = real(3, 4, 7, 6)
SPELT = (
    real(5, 2, 4).log_softmax(-1),
    torch.tensor([[1, 2], [3, 1]]),
    *torch.tensor([[5, 4], [2, 1]]),
)
ROWS, ENDS = real(7, 3), torch.tensor([2, 2, 6])

CASES = [
    Case("Attention", (real(2, 2, 4, 3), real(2, 2, 4, 3), real(2, 2, 4, 3))),
    Case(
        "Attention",
        (real(1, 2, 5, 4), real(1, 2, 5, 4), real(1, 2, 5, 4)),
        {"causal": True, "scale": 0.3},
    ),
    Case(
        "BatchNorm",
        (IMAGE, positive(4), real(4), real(4), positive(4)),
        wanted=(0, 1, 2),
        oracle=_trained_batch_norm,
    ),
    Case("BatchNormTest", (IMAGE, positive(4), real(4), real(4), positive(4)), wanted=(0, 1, 2)),
    Case("Bias", (IMAGE, real(4))),
    Case("Bias", (IMAGE, real(7, 6)), {"axis": -2}),
    Case("CaffeBatchNorm", (IMAGE, real(4), positive(4), positive(1)), wanted=(0,)),
    Case("CaffeBatchNorm", (real(6, 4), real(4), positive(4), positive(1)), wanted=(0,)),
    Case(
        "CaffeLstm",
        (real(5, 2, 12), whole(2, 5, 2), real(12, 3), real(1, 2, 3), real(1, 2, 3)),
        used=(0, 1, 2),
    ),
    Case("CaffeRnn", (real(4, 2, 3), whole(2, 4, 2), real(3, 3), real(1, 2, 3)), used=(0, 1)),
    Case("CtcLosses", SPELT, oracle=_ctc_losses),
    Case("Expect", (real(3, 5), torch.tensor(True), torch.tensor(True)), {"expected": "a, b"}),
    Case("GroupedProduct", (ROWS, real(3, 3, 2), ENDS), oracle=_grouped_product),
    Case("MVN", (IMAGE,)),
    Case("MVN", (IMAGE,), {"across": True, "eps": 0.1}),
    Case("MVN", (IMAGE,), {"variance": False}),
    Case("CaffeBatchNormAlways", (IMAGE,), {"eps": 0.1}),
    Case("CaffeBatchNormTest", (IMAGE, real(4), positive(4), positive(1)), wanted=(0,)),
    Case("CenterCrop", (IMAGE,), {"size": (4, 5)}),
    Case("CenterCrop", (IMAGE,), {"size": 7, "pad": 1, "stream": "crop", "offset": 2}),
    Case("Concat", (real(2, 3), real(2, 1), real(2, 2))),
    Case("Concat", (real(2, 3),), {"axis": 0}),
    Case("ContrastiveLoss", (real(4, 3), real(4, 3), whole(2, 4)), {"margin": 3.0}),
    Case("ContrastiveLoss", (real(4, 3), real(4, 3), whole(2, 4)), {"margin": 9.0, "legacy": True}),
    Case("Conv", (IMAGE, real(5, 4, 3, 3), real(5)), {"pad": 1, "stride": 2}),
    Case("Conv", (IMAGE, real(6, 2, 3, 2)), {"groups": 2, "dilation": (2, 1)}),
    Case("Copy", (IMAGE,)),
    Case("Crop", (IMAGE,), {"size": (4, 3), "stream": "crop"}),
    Case("Crop", (IMAGE,), {"size": 7, "pad": 2, "stream": "crop", "offset": 5}),
    Case(
        "CropGradient",
        (real(3, 4, 5, 5),),
        {"height": 7, "width": 6, "size": 5, "pad": 1, "stream": "crop"},
    ),
    Case("Deconv", (IMAGE, real(4, 5, 3, 3), real(5)), {"stride": 2, "pad": 1, "output_pad": 1}),
    Case("Deconv", (IMAGE, real(4, 1, 2, 2)), {"groups": 4, "stride": 2}),
    Case("Dropout", (IMAGE,), {"ratio": 0.3, "stream": "drop"}),
    Case(
        "Dropout",
        (IMAGE,),
        {"ratio": 0.3, "stream": "drop", "part": (1, IMAGE.shape[1] + 2, 2, IMAGE.shape[1] + 2)},
    ),
    Case("Eltwise", (real(2, 3), real(2, 3), real(2, 3))),
    Case("Eltwise", (real(2, 3), real(2, 3)), {"coefficients": (1.0, -2.5)}),
    Case("Eltwise", (real(2, 3), real(2, 3), real(2, 3)), {"operation": "product"}),
    Case("Eltwise", (real(2, 3), real(2, 3), real(2, 3)), {"operation": "max"}),
    Case("Elu", (real(3, 5),), {"alpha": 0.7}),
    Case("Embedding", (whole(6, 2, 5), real(6, 3))),
    Case("EmbeddingPart", (whole(6, 2, 5), real(3, 3)), {"start": 2}),
    Case("EuclideanLoss", (real(4, 3), real(4, 3))),
    Case("Exp", (real(3, 5),), {"scale": 0.5, "shift": -1.0}),
    Case("Exp", (real(3, 5),), {"base": 2.0}),
    Case("FixedBatch", (real(3, 5),), {"batch": 3, "because": "it is"}),
    Case("Flatten", (IMAGE,)),
    Case("Flatten", (IMAGE,), {"axis": 0, "end": 1}),
    Case("Gelu", (real(3, 5),)),
    Case("Gelu", (real(3, 5),), {"approximate": "tanh"}),
    Case("GlobalPool", (IMAGE,)),
    Case("GlobalPool", (IMAGE,), {"method": "max"}),
    Case("HingeLoss", (real(4, 5), whole(5, 4))),
    Case("HingeLoss", (real(4, 5), whole(5, 4)), {"norm": 2}),
    Case("InfogainLoss", (real(4, 3), whole(3, 4), positive(3, 3)), wanted=(0,)),
    Case(
        "InfogainLoss",
        (real(2, 3, 5), whole(3, 2, 5), positive(3, 3)),
        {"ignore_label": 1, "normalization": "batch"},
        wanted=(0,),
    ),
    Case("InnerProduct", (IMAGE, real(5, 168), real(5))),
    Case("InnerProduct", (real(2, 3, 4), real(5, 4)), {"axis": -1}),
    Case("InnerProduct", (real(2, 3, 4), real(5, 4), real(5)), {"axis": 2}),
    Case("LRN", (IMAGE,), {"size": 3, "alpha": 0.5, "k": 2.0}),
    Case("LRN", (IMAGE,), {"size": 3, "alpha": 0.5, "region": "within"}),
    Case("LayerNorm", (real(2, 3, 4), positive(4), real(4)), {"shape": (4,)}),
    Case("LayerNorm", (real(2, 3, 4),), {"shape": (3, 4)}),
    Case("LeakyRelu", (real(3, 5),), {"slope": 0.2}),
    Case("Log", (positive(3, 5),), {"base": 10.0, "scale": 2.0, "shift": 0.5}),
    Case("Mirror", (IMAGE,), {"stream": "mirror"}),
    Case("MultinomialLogisticLoss", (positive(4, 5), whole(5, 4))),
    Case("Normalize", (IMAGE,), {"mean": 0.5, "scale": 2.0, "dtype": "float64"}),
    Case(
        "Normalize",
        (IMAGE,),
        {"mean": (0.1, 0.2, 0.3, 0.4), "scale": 2.0, "dtype": "float64"},
    ),
    Case("Normalize", (IMAGE, real(*IMAGE.shape[1:])), {"scale": 2.0, "dtype": "float64"}),
    Case("PRelu", (IMAGE, real(4))),
    Case("PRelu", (IMAGE, real(1))),
    Case("Pool", (IMAGE,), {"kernel": 3, "stride": 2, "pad": 1}),
    Case("Pool", (IMAGE,), {"kernel": (3, 2), "stride": 2, "ceil": True}),
    Case(
        "Pool",
        (IMAGE,),
        {"method": "average", "kernel": 3, "stride": 2, "pad": 1, "ceil": True},
    ),
    Case("Pool", (IMAGE,), {"method": "average", "kernel": 3, "pad": 1, "count_pad": False}),
    Case("Prepend", (real(2, 3, 4), real(2, 4))),
    Case("Power", (positive(3, 5),), {"power": 1.5, "scale": 2.0, "shift": 0.1}),
    Case("Reduction", (IMAGE,)),
    Case("Reduction", (IMAGE,), {"operation": "absolute", "axis": 1, "coefficient": 0.5}),
    Case("Reduction", (IMAGE,), {"operation": "square", "axis": 2}),
    Case("Reduction", (IMAGE,), {"operation": "mean", "axis": -1}),
    Case("Relu", (real(3, 5),)),
    Case("Relu6", (4 * real(3, 5),)),
    Case("Reshape", (IMAGE,), {"shape": (0, 2, -1)}),
    Case("Scale", (IMAGE, real(4), real(4))),
    Case("Scale", (IMAGE, real(3, 4)), {"axis": 0}),
    Case("Sigmoid", (real(3, 5),)),
    Case("SigmoidCrossEntropyLoss", (real(3, 5), positive(3, 5) - 0.5)),
    Case(
        "SigmoidCrossEntropyLoss",
        (real(3, 5), whole(2, 3, 5)),
        {"ignore_label": 0, "normalization": "valid"},
    ),
    Case("Slice", (IMAGE,), {"start": 1, "end": 3}),
    Case("Slice", (IMAGE,), {"axis": -1, "start": 2}),
    Case("Softmax", (real(3, 5),)),
    Case("Softmax", (IMAGE,), {"axis": 2}),
    Case("SoftmaxLoss", (real(4, 5), whole(5, 4))),
    Case("ScalarLoss", (real(),)),
    Case("SoftmaxLoss", (real(2, 3, 5), whole(5, 2, 3)), {"axis": 2, "ignore_label": 1}),
    Case("SoftmaxLoss", (IMAGE, whole(4, 3, 7, 6)), {"ignore_label": 0}),
    Case("SoftmaxLoss", (IMAGE, whole(4, 3, 7, 6)), {"normalization": "batch"}),
    Case("SoftmaxLoss", (IMAGE, whole(4, 3, 7, 6)), {"normalization": "none", "ignore_label": 0}),
    Case("Split", (real(2, 6),), {"parts": 3}, used=(0, 1, 2)),
    Case("Split", (real(2, 6),), {"parts": 2, "axis": 0}, used=(1,)),
    Case("BatchReduce", (real(3, 5),), {"operation": "sum"}),
    Case("WholeBatch", (real(3, 5),), {"op": "later", "because": "it mixes samples"}),
    Case("SumLoss", (real(3, 5),)),
    Case("Tanh", (real(3, 5),)),
    Case("Transpose", (IMAGE,), {"axes": (0, 2, 3, 1)}),
]
"""At least one op of every kind of `purine.kinds` that a gradient passes."""

NOT_DIFFERENTIATED = [
    Case("Accuracy", (real(6, 5), whole(5, 6)), {"top_k": 2}),
    Case("ArgMax", (real(6, 5),), {"top_k": 2, "values": True}),
    Case("ArgMax", (IMAGE,), {"axis": 1}),
    Case("Average", (real(3, 5), real(3, 5), real(3, 5))),
    Case("Average", (real(4), real(2, 3), real(4), real(2, 3)), {"groups": 2}),
    Case("Average", (real(2), real(2)), {"weights": (0.25, 0.75)}),
    Case("Reduce", (real(4), real(2, 3), real(4), real(2, 3)), {"groups": 2}),
    Case("Reduce", (real(2), real(2)), {"weights": (0.25, 0.75)}),
    Case("BatchNormGradient", (IMAGE, IMAGE, real(4), real(4), positive(4), real(4), real(4))),
    Case("BatchNormStatistics", (IMAGE,)),
    Case("BatchNormStatistics", (real(5, 3),)),
    Case("BatchNormSums", (IMAGE, IMAGE, real(4), positive(4)), {"eps": 1e-3}),
    Case(
        "CombineStatistics",
        (real(4), positive(4), real(4), positive(4), real(4), positive(4)),
        {"counts": (2, 3)},
    ),
    Case("BatchReduceGradient", (real(3),), {"operation": "sum", "scale": 2.0}),
    Case("CountSum", (real(3), real(3))),
    Case("Collect", (real(3, 5),)),
    Case("DecodeCast", (real(3, 5).half(),)),
    Case("DecodeInt8", (whole(127, 3, 5).to(torch.int8), positive(4)), {"block": 4}),
    Case("DecodeTopK", (real(2), torch.tensor([1, 7], dtype=torch.int32)), {"shape": (3, 5)}),
    Case("ElasticMeet", (real(3, 5), real(3, 5), torch.tensor(1)), {"alpha": 0.25}),
    Case("ElasticMove", (real(3, 5), real(3, 5)), {"alpha": 0.25}),
    Case("EncodeCast", (real(3, 5),), {"dtype": "bfloat16"}),
    Case("EncodeInt8", (real(3, 5), real(3, 5)), {"block": 4}),
    Case("EncodeInt8", (real(3, 5), real(3, 5)), {"block": 0}),
    Case("EncodeTopK", (real(3, 5), real(3, 5)), {"share": 0.2}),
    Case("Fetch", (real(3, 5),)),
    Case("GossipReceive", (positive(), positive(), real(4), real(2, 3), real(4), real(2, 3))),
    Case("GossipSend", (positive(), positive(), real(4), real(2, 3), real(4), real(2, 3))),
    Case("LabelCount", (whole(5, 6), positive(5)), {"ignore_label": 1, "dtype": "float64"}),
    Case("Last", (real(3, 5), real(3, 5))),
    Case("OuterMomentum", (real(4), real(4), real(4), real(4)), {"rate": 0.5, "momentum": 0.5}),
    Case("OuterStep", (real(4), real(4), real(4)), {"rate": 0.5}),
    Case("OuterWay", (real(4), real(4)), {"rate": 0.5}),
    Case("OuterWayMomentum", (real(4), real(4), real(4)), {"rate": 0.5, "momentum": 0.5}),
    Case("Rebase", (real(3, 5), real(3, 5), real(3, 5))),
    Case("RandomMask", (), {"shape": (3, 4), "keep": 0.5, "stream": "drop", "dtype": "float64"}),
    Case("CtcLossesGradient", (real(2), *SPELT)),
    Case("GroupedProductGradient", (ROWS, real(7, 2), ENDS)),
    Case("RandomExponential", (), {"shape": (3, 4), "stream": "a", "dtype": "float64"}),
    Case("RandomIntegers", (), {"shape": (3, 4), "stream": "a", "high": 9, "dtype": "int64"}),
    Case("RandomNormal", (), {"shape": (3, 4), "stream": "a", "dtype": "float64"}),
    Case("RandomUniform", (), {"shape": (3, 4), "stream": "a", "dtype": "float64"}),
    Case("StaleRate", (positive(), whole(5), whole(9))),
    Case("StopGradient", (real(3, 5),)),
    Case("Threshold", (real(3, 5),), {"threshold": 0.25}),
]
"""The kinds that no gradient passes. Others are `Data`, the source, and `Segment`, of a run."""

ATEN_CASES = [
    Case("aten.relu", (real(3, 5),)),
    Case("aten.addmm", (real(4), real(3, 5), real(5, 4)), {"beta": 0.5}),
    Case("aten.cat", (real(2, 3), real(2, 1)), {"dim": 1}),
    Case("aten.index.Tensor", (real(3, 5), whole(5, 4)), {"indices": (None, "$1")}),
    Case("aten.index.Tensor", (real(3, 5), whole(3, 4), whole(5, 4)), {"indices": ("$1", "$2")}),
    Case("aten.sum.dim_IntList", (IMAGE,), {"dim": (1, 3), "keepdim": True}),
    Case("aten.mul.Tensor", (real(3, 1), real(1, 4))),
    Case("aten._softmax", (real(3, 5),), {"dim": 1, "half_to_float": False}),
    Case(
        "aten.convolution",
        (IMAGE, real(5, 4, 3, 3)),
        {
            "bias": None,
            "stride": (1, 1),
            "padding": (1, 1),
            "dilation": (1, 1),
            "transposed": False,
            "output_padding": (0, 0),
            "groups": 1,
        },
    ),
    Case("aten.max_pool2d_with_indices", (IMAGE,), {"kernel_size": (2, 2)}),
    Case("sized.aten.expand", (real(1, 3), real(4, 2)), {"size": ("batch", -1)}, wanted=(0,)),
    Case("sized.aten.div.Tensor", (real(3), real(4, 2)), {"other": "batch-1"}, wanted=(0,)),
    Case(
        "sized.aten.cat", (real(2, 3), real(1, 3), whole(9, 1)), {"dim": "batch-1"}, wanted=(0, 1)
    ),
    Case("aten.embedding", (real(6, 3), whole(6, 4))),
    Case("aten.where.self", (real(3, 5) > 0, real(3, 5), real(3, 5))),
    Case(
        "aten.native_layer_norm",
        (real(3, 5), positive(5), real(5)),
        {"normalized_shape": (5,), "eps": 1e-5},
    ),
]
"""ATen overloads as ops, with absent tensors, lists, several results, and sizes in samples."""
