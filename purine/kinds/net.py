"""Writing a net: layer functions (`conv`, `pool`, ...) take and return a `Var`, a blob of the net.

    net = Net()
    image, label = net.data((64, 1, 28, 28))
    x = relu(conv(image, 20, kernel=5, name="conv1"))
    softmax_loss(inner_product(x, 10, name="fc"), label, name="loss")
    graph = net.graph()

Shapes are inferred as the net is written, so an error points to the line of the mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from purine.analysis.infer import infer_op, spec_of
from purine.arguments import checked, wrong_value
from purine.errors import ConfigError
from purine.graph import DTYPES, NOTHING, Attribute, Blob, Builder, Filler, Graph, Lane, Op
from purine.nearest import nearest_name
from purine.registry.clock import ITERATION, SEED, add_clock
from purine.registry.kind import IMPLIED
from purine.registry.lookup import lookup

__all__ = ["Net", "Var"]


@dataclass(frozen=True, slots=True)
class Var:
    """A blob of a net that is being written."""

    net: Net
    name: str

    @property
    def blob(self) -> Blob:
        return self.net.builder.blobs[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.blob.sizes

    def extent(self, axis: int) -> int:
        """The size along an axis, which a layer needs to make its parameters."""
        if axis >= len(self.shape):
            expected, found = f"{axis + 1} dimensions or more", f"shape {list(self.shape)}"
            remedy = "reshape it, or use a layer for such blobs"
            raise _misuse(self.name, f"has no axis {axis}", expected, found, remedy)
        return self.shape[axis]

    def with_weights(
        self, name: str, shape: Sequence[int], biases: int, weight: Filler, bias: Filler | None
    ) -> list[Var]:
        """The inputs of the layer `name`: this blob, its weight, and a bias of `biases` values."""
        inputs = [self, self.net.parameter(f"{name}/weight", shape, weight)]
        if biases:
            inputs.append(self.net.parameter(f"{name}/bias", (biases,), bias or Filler()))
        return inputs


class Net:
    """A net that is being written; `graph()` freezes it.

    >>> net = Net()
    >>> x = net.input("x", (2, 3))
    >>> y = net.apply("Relu", [x], name="relu1")
    >>> y.name, y.shape
    ('relu1', (2, 3))
    """

    @checked
    def __init__(self, *, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            remedy = nearest_name(dtype, DTYPES, "use one of these")
            expected = f"one of {', '.join(sorted(DTYPES))}"
            raise wrong_value(ConfigError, "dtype", dtype, expected, remedy=remedy)
        self.dtype = dtype
        self.builder = Builder()

    @checked
    def input(self, name: str, shape: Sequence[int], dtype: str | None = None) -> Var:
        """A blob that the caller of the graph feeds."""
        return Var(self, self.builder.blob(name, shape, dtype or self.dtype))

    @checked
    def data(self, shape: Sequence[int], *, name: str = "data") -> tuple[Var, Var]:
        """The images and labels of a `Data` op: blobs `data` and `label`."""
        if not shape:
            raise _wrong_size(name, shape)
        fields = [(name, shape, self.dtype), ("label", shape[:1], "int64")]
        images, labels = self.source(fields, name=name)
        return images, labels

    @checked
    def source(
        self, fields: Sequence[tuple[str, Sequence[int], str]], *, name: str = "data"
    ) -> tuple[Var, ...]:
        """The blobs of a `Data` op with the given names, shapes and dtypes."""
        for blob, shape, _ in fields:
            if not shape or min(shape) < 1:
                raise _wrong_size(blob, shape)
        add_clock(self.builder)
        names = [self.builder.blob(blob, shape, dtype) for blob, shape, dtype in fields]
        self.builder.op(name, "Data", [SEED, ITERATION], names, lane="io")
        return tuple(Var(self, blob) for blob in names)

    @checked
    def parameter(
        self,
        name: str,
        shape: Sequence[int],
        filler: Filler,
        *,
        trainable: bool = True,
        lr_mult: float = 1.0,
        decay_mult: float = 1.0,
    ) -> Var:
        """A state that solvers update (or, where it is not trainable, that ops of the net do)."""
        if any(size < 1 for size in shape):
            raise _wrong_size(name, shape)
        self.builder.blob(name, shape, self.dtype)
        self.builder.state(
            name, filler=filler, trainable=trainable, lr_mult=lr_mult, decay_mult=decay_mult
        )
        return Var(self, name)

    @checked
    def carry(self, state: Var, following: Var) -> None:
        """Let the next iteration read `following` where this one reads `state`."""
        if state.name not in self.builder.states:
            found = ", ".join(self.builder.states) or "no states"
            remedy = "make it with Net.parameter"
            raise _misuse(state.name, "is no state", "a parameter of this net", found, remedy)
        old = self.builder.states.pop(state.name)
        self.builder.add(replace(old, next=following.name))

    @checked
    def apply(
        self,
        kind: str,
        inputs: Sequence[Var],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        name: str | None = None,
        lane: Lane = "compute",
    ) -> Var:
        """Add an op of one result, which is named like the op."""
        return self.apply_many(kind, inputs, attributes, name=name, labels=("",), lane=lane)[0]

    @checked
    def apply_many(
        self,
        kind: str,
        inputs: Sequence[Var],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        name: str | None = None,
        labels: Sequence[str | None],
        lane: Lane = "compute",
    ) -> tuple[Var, ...]:
        """Add an op whose results are named `name/label`, or `name` where a label is empty.

        A label of None drops that result; the others are returned.
        """
        for variable in inputs:
            if variable.net is not self:
                expected = "blobs of the net that the op is added to"
                what, found = "belongs to another net", f"{variable.name!r} of another Net"
                remedy = "write a net with one Net object"
                raise _misuse(variable.name, what, expected, found, remedy)
        name = self.builder.fresh(name or kind.lower())
        outputs = tuple(
            NOTHING if label is None else f"{name}/{label}" if label else name for label in labels
        )
        op = Op(name, kind, tuple(var.name for var in inputs), outputs, attributes or {}, lane=lane)
        self.add(op)
        return tuple(Var(self, output) for output in op.results)

    def add(self, op: Op) -> None:
        """Add an op, with its implied inputs and blobs for its results, less default settings."""
        known = lookup(op)
        implied = [item for item in known.inputs if item in IMPLIED]
        if implied:
            add_clock(self.builder)
        defaults = {key: attribute.default for key, attribute in known.attributes.items()}
        said = {k: v for k, v in op.attributes.items() if k not in defaults or defaults[k] != v}
        op = replace(op, inputs=(*op.inputs, *implied), attributes=said)
        for error in known.problems(op):
            raise error
        specs = infer_op(op, [spec_of(self.builder.blobs[item]) for item in op.inputs])
        for output, spec in zip(op.outputs, specs, strict=True):
            if output != NOTHING and spec is not None:
                self.builder.blob(output, spec.shape, spec.dtype, where=op.where)
        self.builder.add(op)

    @checked
    def output(self, *variables: Var) -> None:
        """Ask for these blobs: they are what a run reports."""
        self.builder.outputs += [variable.name for variable in variables]

    def graph(self) -> Graph:
        """The net as a graph. Without a call of `output`, it reports what nothing reads."""
        graph = self.builder.graph()
        if not graph.outputs:
            self.builder.outputs = list(graph.sinks)
            graph = self.builder.graph()
        return graph


def _wrong_size(name: str, shape: Sequence[int]) -> ConfigError:
    found, remedy = str(list(shape)), "change the batch size, or the sizes of the layer"
    return _misuse(name, f"has the shape {found}", "sizes of 1 or more", found, remedy)


def _misuse(blob: str, what: str, expected: str, found: str, remedy: str) -> ConfigError:
    what = f"blob {blob!r} {what}"
    return ConfigError(what, blob=blob, expected=expected, found=found, remedy=remedy)
