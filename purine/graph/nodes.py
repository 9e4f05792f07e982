"""The nodes of a graph: plain frozen values that hold names, never bytes.

An op refers to blobs by name, so a node can be copied into another graph as it is, and equality of
graphs is equality of values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from purine.arguments import check_fields, shown
from purine.errors import GraphError

__all__ = [
    "CHANNELS_LAST",
    "COLLECTIVES",
    "FETCH",
    "LAST",
    "NOTHING",
    "ROUND",
    "Attribute",
    "Blob",
    "Filler",
    "Lane",
    "Location",
    "Op",
    "Origin",
    "Role",
    "State",
    "computes",
    "floats",
]

Attribute: TypeAlias = "bool | int | float | str | tuple[Attribute, ...] | None"
"""What an op's attribute may hold; lists become tuples."""

Lane: TypeAlias = str
"""An ordered queue at a location: `compute`, `compute:1`, `inbound`, `outbound` or `io`.

A lane `float:K` is no queue of its location: in each iteration its ops run together at whichever
CPU device is free, of those that have such lanes on its host."""

Role: TypeAlias = Literal["forward", "backward", "update", "recompute", "copy", "reduce"]
"""What an op is for: `update` are all ops between a gradient and the next value of its parameter,
`reduce` adds up or combines the parts of a batch."""

NOTHING = ""
"""Stands in `Op.outputs` for a result that nobody asked for: no blob, no buffer."""

CHANNELS_LAST = "channels-last"
"""The layout in which the channels of a pixel, or of a point of a filter, lie side by side."""

COLLECTIVES = frozenset(("Reduce",))
"""Kinds that read blobs where these are, at several locations, and write at the op's own."""

FETCH = "Fetch"
"""The kind that reads the newest version of states."""
LAST = "Last"
"""The kind whose inputs behind the first may be missing in some iterations."""
ROUND = "Round"
"""The kind that makes the worker it belongs to a courier, which carries between hosts."""

_DEVICE = re.compile(r"(cpu|cuda):(0|[1-9][0-9]*)")
_LANE = re.compile(r"(compute(:[1-9][0-9]*)?|float:(0|[1-9][0-9]*)|inbound|outbound|io)")


def computes(lane: Lane) -> bool:
    """Whether a lane is for the compute of a device."""
    return lane.startswith(("compute", "float"))


def floats(lane: Lane) -> bool:
    """Whether the ops of a lane run at whichever device is free."""
    return lane.startswith("float")


def _frozen(node: Op | Filler, attributes: object) -> dict[str, Attribute]:
    if not isinstance(attributes, Mapping):
        found, remedy = shown(attributes), "write for example {'axis': 1}"
        what = f"the attributes of {node.kind} are {found}"
        raise GraphError(what, "a mapping of names to values", found, remedy)
    return {key: _freeze(value) for key, value in attributes.items()}


def _freeze(value: object) -> Attribute:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence):
        return tuple(_freeze(item) for item in value)
    expected = "a number, a text, true or false, None, or a list of such"
    remedy = "give tensors to ops as inputs, and other values as numbers and texts"
    raise GraphError(f"an attribute cannot hold {shown(value)}", expected, shown(value), remedy)


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """Where a node lives: a machine (a process on it) and a device of that machine.

    >>> print(Location(device="cuda:1"))
    host 127.0.0.1, cuda:1
    """

    host: str = "127.0.0.1"
    device: str = "cpu:0"

    def __post_init__(self) -> None:
        check_fields(self)
        if not _DEVICE.fullmatch(self.device):
            expected, found = "cpu:K or cuda:K with K = 0, 1, ...", repr(self.device)
            raise GraphError(f"{found} is not a device", expected, found, "write for example cpu:0")

    def __str__(self) -> str:
        return f"host {self.host}, {self.device}"


@dataclass(frozen=True, slots=True)
class Blob:
    """A data node: name, shape, dtype and location.

    `shape` is None while it is still to be inferred from the op that produces the blob. `layout` is
    how four dimensions lie in memory: `CHANNELS_LAST`, or empty where kernels may choose.
    `where` is the place in a file that declared it, and takes no part in equality.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"
    location: Location = Location()
    where: str | None = field(default=None, compare=False)
    layout: str = ""

    def __post_init__(self) -> None:
        known = self.shape is None or type(self.shape) is tuple
        if not known or type(self.dtype) is not str:  # `verify` looks at sizes and names
            check_fields(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a blob whose shape is known."""
        assert self.shape is not None, f"blob {self.name!r} has no shape yet: complete the graph"
        return self.shape

    @property
    def type_text(self) -> str:
        """Dtype, shape and layout, such as `float32 2x3`."""
        shape = "?" if self.shape is None else "x".join(map(str, self.shape)) or "scalar"
        return " ".join(filter(None, (self.dtype, shape, self.layout)))

    def __str__(self) -> str:
        return f"{self.name}: {self.type_text}"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a node was made for: provenance that transforms write and read, instead of names.

    `of` is the op or the blob that it belongs to, by its name in the same graph: the op of the net
    for a call of its forward or backward, the parameter for an update, the source for a copy.
    `parts` is the prefix that the copies of its part of the batch have in common, such as
    `replica1/micro0/`. The numbers say which part it is, where there are parts.
    """

    of: str
    role: Role = "forward"
    parts: str = ""
    replica: int | None = None
    micro: int | None = None
    stage: int | None = None
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """A compute node: what kind of work, on which blobs, where and in which lane.

    An op without `origin` is an op of the net. `origin` and `where` take no part in equality.

    An op runs in the iterations *i* with `i % every == phase`. In the others its results do not
    exist, and a state whose next value it writes keeps its value. The ops of a `worker` count
    iterations together; workers have nothing in common but shared states.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict, hash=False)
    location: Location = Location()
    lane: Lane = "compute"
    where: str | None = field(default=None, compare=False)
    origin: Origin | None = field(default=None, compare=False)
    every: int = 1
    phase: int = 0
    worker: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", _frozen(self, self.attributes))
        if type(self.inputs) is not tuple or type(self.outputs) is not tuple:
            check_fields(self)
        if not _LANE.fullmatch(self.lane):
            what = f"op {self.name!r} is on lane {self.lane!r}"
            expected = "compute, compute:K with K = 1, 2, ..., float:K, inbound, outbound or io"
            remedy = "leave the lane (in YAML: thread) out to run on compute"
            raise GraphError(what, expected, repr(self.lane), remedy, op=self)

    def __str__(self) -> str:
        return f"op {self.name!r} ({self.kind}) at {self.location}"

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs that somebody asked for."""
        return tuple(filter(None, self.outputs))

    def renamed(self, names: Mapping[str, str]) -> Op:
        """The op with other names for blobs that it reads and writes."""
        inputs = tuple(names.get(name, name) for name in self.inputs)
        outputs = tuple(names.get(name, name) for name in self.outputs)
        return replace(self, inputs=inputs, outputs=outputs)

    def runs_in(self, iteration: int) -> bool:
        """Whether the op runs in an iteration."""
        return iteration % self.every == self.phase

    def whole(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number."""
        value = self.attributes.get(name, default)
        assert isinstance(value, int)
        return value

    def items(self, name: str) -> tuple[Any, ...]:
        """An attribute that is a list; an empty one if the op does not have it."""
        value = self.attributes.get(name, ())
        assert isinstance(value, tuple)
        return value

    def number(self, name: str, default: float = 0.0) -> float:
        """An attribute that is a number."""
        value = self.attributes.get(name, default)
        assert isinstance(value, int | float)
        return float(value)


@dataclass(frozen=True, slots=True)
class Filler:
    """How the first value of a state is made: a kind of filler and its settings."""

    kind: str = "constant"
    attributes: Mapping[str, Attribute] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", _frozen(self, self.attributes))
        check_fields(self)


@dataclass(frozen=True, slots=True)
class State:
    """A pair of blobs: what iteration *i* writes to `next`, iteration *i + 1* reads from `read`.

    A state whose `next` is its own `read` keeps its value: a parameter before a solver was added,
    or a frozen one. `trainable` marks parameters; the multipliers scale a solver's rate and decay.
    `origin` is the parameter that a solver keeps the state for.

    A `Fetch` op reads the newest version of a state that there is. With `staleness` s the one for
    iteration *i* may lack what the iterations from *i - s* on write. States that are `shared` under
    one name are one value of several workers, which count iterations of their own: a worker sees
    all that it wrote itself, and `staleness` bounds what it lacks of the others; None is no bound.
    """

    read: str
    next: str
    filler: Filler = Filler()
    trainable: bool = False
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    where: str | None = field(default=None, compare=False)
    origin: Origin | None = field(default=None, compare=False)
    staleness: int | None = 0
    shared: str = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def versioned(self) -> bool:
        """Whether readers take the newest version that there is, through a `Fetch`."""
        return bool(self.shared) or self.staleness != 0
