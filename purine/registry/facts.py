"""What transforms need to know about a kind, declared where the kind is.

The facts of ATen overloads are in `registry.aten_facts`. An absent fact means the cautious choice:
float32, no sharding, a trial run instead of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from purine.registry.spec import Settings, Shape, Shapes

__all__ = ["UNKNOWN", "Facts", "Precision", "Role", "SampleRule", "ShardRule", "with_labels"]


class Precision(Enum):
    """How a kind takes its floating-point inputs in mixed precision (`optimize.mixed`)."""

    LOW = auto()
    """All in low precision: matrix products gain from it, and add up in float32 inside."""
    NORM = auto()
    """The first as it is; the others (scale, shift and statistics) in float32."""
    FOLLOW = auto()
    """All in low precision if one of them was computed in it, else as they are."""
    WIDE = auto()
    """All in float32. This is what a kind without the fact gets."""


ShardRule = Enum(
    "ShardRule",
    "ELEMENTWISE CHANNEL_SCALE PRELU DROPOUT BATCH_NORM LAYER_NORM LOCAL_RESPONSE POOL MEAN "
    "ATTENTION TRANSPOSE RESHAPE SPLIT CONCAT ALONG_AXIS SELECT BATCHED_PRODUCT LINEAR ADDMM MM "
    "MATMUL CONVOLUTION EMBEDDING",
)
"""Which rule of `parallel._shard_rules` divides an op among devices."""


SampleRule = Enum(
    "SampleRule",
    "ROWS IDENTITY BATCH_NORM ALONG_AXIS SELECT RESHAPE RESHAPE_ROWS PERMUTE TRANSPOSE LAYER_NORM "
    "LINEAR MATRIX_PRODUCT ATTENTION EMBEDDING LABELS CROSS_ENTROPY SUM MEAN EXTREME",
)
"""Which rule of `analysis.sample_rules` says how results depend on the samples of a batch.

`ROWS`: row k along the first of two or more axes depends on row k of the inputs, and on inputs that
are the same for all samples. `IDENTITY`: the first input, in another dtype or layout at most.
`BATCH_NORM`: normalised by the statistics of the samples of the batch.
"""


class Role(Enum):
    """What an op is to transforms that look for ops of one sort."""

    CONVOLUTION = auto()
    TRANSPOSED_CONVOLUTION = auto()
    CONVOLUTION_BACKWARD = auto()
    CONCATENATION = auto()
    COPY = auto()
    ELEMENTWISE_UPDATE = auto()
    """A parameter update that may be divided: each element depends on that element alone."""
    ELEMENTWISE = auto()
    """What else may be divided between a gradient and an update. A flag is combined afterwards."""
    COMBINATION = auto()
    """One scalar of many inputs, the same however the inputs are divided, as a norm is."""


def alike(dtypes: Sequence[str]) -> bool:
    """Whether all inputs have the same floating-point dtype."""
    return dtypes[0] in ("float32", "float64") and len(set(dtypes)) == 1


def with_labels(dtypes: Sequence[str]) -> bool:
    """Whether the first input is floating-point and the others are integers."""
    return alike(dtypes[:1]) and all(dtype in ("int32", "int64") for dtype in dtypes[1:])


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a kind besides its function; None where nothing is.

    `shape` gives the shape of the only result from the attributes and the shapes of the inputs, for
    inputs whose dtypes `dtypes` accepts; the result has the dtype of the first input. It returns
    None for anything unusual: torch then decides, and words the error.
    """

    precision: Precision | None = None
    shard: ShardRule | None = None
    samples: SampleRule | None = None
    role: Role | None = None
    shape: Callable[[Settings, Shapes], Shape | None] | None = None
    dtypes: Callable[[Sequence[str]], bool] = alike


UNKNOWN = Facts()
