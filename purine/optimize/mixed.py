"""Mixed precision: casts before and after the ops that compute in low precision.

Each kind declares its `Precision`. States (parameters, statistics, optimizer state) and the outputs
of the net stay float32. A blob is cast at most once in each direction, and never for an op that
takes low precision as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from purine.analysis.infer import complete, infer_op, spec_of
from purine.arguments import at_least, checked, positive
from purine.autodiff import losses_of
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph, Op
from purine.graph.names import GRADIENT, has_gradients
from purine.kinds.loss_scale import LOSS_SCALE, add_loss_scale
from purine.registry.facts import Precision
from purine.registry.kind import IMPLIED
from purine.registry.lookup import lookup
from purine.registry.sized import PREFIX as SIZED

__all__ = ["DTYPES", "mixed", "precision_of"]

DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16"}
"""The low precisions by the names that people give them."""

_WIDE = "float32"


def precision_of(op: Op) -> Precision:
    """The precision class of the kind of an op."""
    return lookup(op).facts.precision or Precision.WIDE


@checked
def mixed(
    net: Graph, dtype: str = "bf16", *, loss_scale: float | None = None, growth_interval: int = 2000
) -> Graph:
    """The net with matrix products and what follows them in low precision, and states in float32.

    Use it before `backward`. `dtype` is `bf16` or `fp16`. A net in `fp16`, or with `loss_scale`
    given, has a loss scale. It starts at `loss_scale` (by default 65536), is halved in an iteration
    with a gradient that is not finite, whose updates are skipped, and is doubled after
    `growth_interval` iterations without one.

    >>> from purine.zoo import lenet
    >>> net = mixed(lenet(batch=2))
    >>> net.blobs["conv1"].dtype, net.blobs["conv1/weight"].dtype, net.blobs["loss"].dtype
    ('bfloat16', 'float32', 'float32')
    """
    if dtype not in DTYPES:
        what = f"there is no precision {dtype!r} to mix with float32"
        remedy = "use one of these, or leave mixed out to train in float32"
        raise ConfigError(what, " or ".join(DTYPES), repr(dtype), remedy)
    if loss_scale is not None:
        positive("loss_scale", loss_scale)
    at_least("growth_interval", growth_interval, 1)
    net = complete(net)
    _refuse(net)
    builder = _Casts(net, DTYPES[dtype], dtype).result
    if loss_scale is not None or dtype == "fp16":
        losses = [net.blobs[name] for name in losses_of(net)] or list(net.blobs.values())
        scale = 2.0**16 if loss_scale is None else loss_scale
        add_loss_scale(builder, scale=scale, interval=growth_interval, location=losses[0].location)
    return builder.graph()


class _Casts:
    """One net while its casts are put in. Names are those of the net that is given."""

    def __init__(self, net: Graph, dtype: str, suffix: str) -> None:
        self.net, self.dtype, self.suffix = net, dtype, suffix
        self.result = Builder(net)
        self.result.ops.clear()
        self.kept = {*net.outputs, *(state.next for state in net.states.values())}
        self.low: dict[str, str] = {}
        """By blob, what holds it in low precision."""
        self.wide: dict[str, str] = {}
        """By blob that was computed in low precision, what holds it in float32."""
        self.computed: set[str] = set()
        """Blobs that were computed in low precision."""
        for op in net.in_order:
            self._add(op)

    def _add(self, op: Op) -> None:
        if lookup(op).function is None:
            self.result.add(op)
            return
        inputs = self._inputs(op)
        given = [spec_of(self.result.blobs[name]) for name in inputs]
        specs = infer_op(replace(op, inputs=inputs), given)
        outputs, back = [], []
        for name, spec in zip(op.outputs, specs, strict=True):
            if name == NOTHING or spec is None or spec.dtype != self.dtype:
                outputs.append(name)
                continue
            self.computed.add(name)
            self.low[name] = name
            blob = self.result.blobs[name]
            if name in self.kept:
                self.low[name] = self.result.fresh(f"{name}/{self.suffix}")
                self.wide[name] = name
                back.append(name)
            self.result.blobs[self.low[name]] = replace(blob, name=self.low[name], dtype=self.dtype)
            outputs.append(self.low[name])
        self.result.add(replace(op, inputs=inputs, outputs=tuple(outputs)))
        for name in back:
            self._cast(self.low[name], _WIDE, name, op)

    def _inputs(self, op: Op) -> tuple[str, ...]:
        """The inputs of the op, cast where its precision class asks for it."""
        dtypes = [self.net.blobs[name].dtype for name in op.inputs]
        precision = Precision.WIDE if "float64" in dtypes else precision_of(op)
        real = [dtype == _WIDE for dtype in dtypes]
        if op.kind.startswith(SIZED):  # of the blob that tells the batch, only the size counts
            real[-1 - sum(name in IMPLIED for name in lookup(op).inputs)] = False
        as_low = precision is Precision.LOW or (
            precision is Precision.FOLLOW and not self.computed.isdisjoint(op.inputs)
        )
        first = op.inputs[0] if op.inputs else NOTHING
        inputs = []
        for index, (name, is_real) in enumerate(zip(op.inputs, real, strict=True)):
            if not is_real:
                inputs.append(self.low.get(name, name) if name in self.computed else name)
            elif precision is Precision.NORM and index == 0:
                inputs.append(self.low[first] if first in self.computed else first)
            else:
                inputs.append(self._as_low(name, op) if as_low else self._as_wide(name, op))
        return tuple(inputs)

    def _as_low(self, name: str, op: Op) -> str:
        if name not in self.low and not self._draw_low(name):
            self.low[name] = self.result.fresh(f"{name}/{self.suffix}")
            self._cast(name, self.dtype, self.low[name], op)
        return self.low[name]

    def _as_wide(self, name: str, op: Op) -> str:
        if name not in self.computed:
            return name
        if name not in self.wide:
            self.wide[name] = self.result.fresh(f"{name}/fp32")
            self._cast(self.low[name], _WIDE, self.wide[name], op)
        return self.wide[name]

    def _draw_low(self, name: str) -> bool:
        """Let a mask that nobody reads yet be drawn in low precision."""
        drawn = self.net.producers.get(name)
        if drawn is None or drawn.kind.removeprefix(SIZED) != "RandomMask" or name in self.kept:
            return False
        if any(name in other.inputs for other in self.result.ops.values()):
            return False
        settings = {**drawn.attributes, "dtype": self.dtype}
        self.result.ops[drawn.name] = replace(self.result.ops[drawn.name], attributes=settings)
        self.result.blobs[name] = replace(self.result.blobs[name], dtype=self.dtype)
        self.low[name] = name
        self.computed.add(name)
        return True

    def _cast(self, name: str, dtype: str, result: str, op: Op) -> None:
        blob = self.result.blobs[name]
        if result not in self.result.blobs:
            self.result.blob(result, blob.shape, dtype, blob.location, layout=blob.layout)
        own = self.result.fresh(f"{result}/cast") if result in self.result.ops else result
        settings: dict[str, Attribute] = {"dtype": dtype}
        inputs, outputs, at = (name,), (result,), blob.location
        self.result.add(Op(own, "aten._to_copy", inputs, outputs, settings, at, op.lane))


def _refuse(net: Graph) -> None:
    if has_gradients(net):
        what = "the graph has gradients already, and the casts belong before them"
        found, remedy = f"blobs under {GRADIENT}/", "use the order sgd(backward(mixed(net)))"
        raise GraphError(what, "a net of forward ops", found, remedy)
    low = next((blob for blob in net.blobs.values() if blob.dtype in DTYPES.values()), None)
    if low is not None or LOSS_SCALE in net.blobs:
        what, expected = "the net has blobs of low precision already", "a net in float32"
        remedy = "call mixed once, on the net in float32"
        found = f"blob {low}" if low else f"a state {LOSS_SCALE}"
        blob, where = (low.name, low.where) if low else (LOSS_SCALE, None)
        raise GraphError(what, expected, found, remedy, where=where, blob=blob)
