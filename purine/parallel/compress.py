"""Compression of network traffic: gradients, and parameters on their way back.

A `Copy` between hosts becomes an encoder at the sender, copies of the encoded blobs, and a decoder
at the receiver that writes the output of the copy. Readers, names and the reduction stay. Copies
are found by their locations; the origins of neighbouring ops tell what they carry.

Invariant: all replicas compute with the same weights. If parameters return rounded, the owner uses
the exact value only for the update, and its own replicas read the rounded one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

import purine.kinds.compress  # noqa: F401  (registers the kinds)
from purine.analysis.infer import check, size_in_bytes
from purine.arguments import at_least, checked, wrong_value
from purine.errors import ConfigError
from purine.graph import COLLECTIVES, NOTHING, Attribute, Blob, Builder, Graph, Op, Origin, State
from purine.graph.names import encoded_of, encoder_of, origin_of, slot_of
from purine.nearest import unknown_name
from purine.parallel._parts import BESIDE
from purine.placement.copies import insert_copies
from purine.placement.devices import devices_of, wrong_devices

__all__ = ["METHODS", "Method", "Returned", "compress"]

Method: TypeAlias = Literal["fp16", "bf16", "int8", "topk"]
Returned: TypeAlias = Literal["fp32", "fp16", "bf16"]
METHODS: tuple[str, ...] = get_args(Method)

_TINY = 4096
"""Smaller blobs, in bytes, stay as they are: a message costs more than its bytes."""
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class _Codec:
    """An encoder, a decoder, and the encoded blobs between them: dtypes by their names.

    With `feedback` the encoder also reads and writes the residual. A `sized` decoder is told the
    shape of its result.
    """

    encoder: str
    decoder: str
    parts: Mapping[str, str]
    encoding: Mapping[str, Attribute] = field(default_factory=dict)
    decoding: Mapping[str, Attribute] = field(default_factory=dict)
    feedback: bool = False
    sized: bool = False


_ENCODERS = frozenset({"EncodeCast", "EncodeInt8", "EncodeTopK"})


@checked
def compress(
    step: Graph,
    method: str,
    *,
    parameters: str | None = None,
    share: float = 0.01,
    block: int = 256,
    between: Literal["hosts", "devices"] = "hosts",
) -> Graph:
    """Encode the gradients and parameters that a training step sends between hosts.

    `fp16` and `bf16` round gradients, and parameters on their way back. `int8` sends gradients as
    codes of 8 bits with a scale for each `block` of values (0: one for all). `topk` sends the
    `share` of each gradient with the largest magnitudes. Both use error feedback: they keep the
    part that they did not send as a state, `residual/...`, and add it to the next gradient. With
    them parameters return in the precision `parameters`: `fp32` (the default), `fp16` or `bf16`.

    Only float32 blobs of 4 KiB and more are encoded. With `between="devices"`, copies between all
    devices are encoded. A step on one host (or device) is refused.

    >>> import purine as pu
    >>> net = pu.zoo.mlp(batch=8)
    >>> step = pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0")
    >>> bytes_moved = pu.parallel.bytes_moved
    >>> round(bytes_moved(step) / bytes_moved(compress(step, "fp16")), 1)
    2.0
    """
    if method not in METHODS:
        raise unknown_name(ConfigError, "method of compression", method, METHODS)
    returned = (method if method in _DTYPES else "fp32") if parameters is None else parameters
    if returned not in get_args(Returned):
        raise unknown_name(ConfigError, "parameters", returned, get_args(Returned))
    at_least("block", block, 0)
    if not 0 < share <= 1:
        raise wrong_value(ConfigError, "share", share, "a number above 0, at most 1")
    step = check(step)
    _refuse_one(step, between)
    _refuse_collectives(step)
    codecs = {"fp16": _cast("fp16"), "bf16": _cast("bf16")}
    gradients = {**codecs, "int8": _int8(block), "topk": _topk(share)}[method]
    return _Compression(step, between == "devices").graph(gradients, codecs.get(returned))


def _refuse_collectives(step: Graph) -> None:
    """Refuse collectives, which add values as they are."""
    for op in step.ops.values():
        hosts = {step.blobs[name].location.host for name in op.inputs}
        if op.kind in COLLECTIVES and len(hosts) > 1:
            raise ConfigError(
                "collectives between hosts are not compressed",
                expected="a step whose hosts send gradients to each other",
                found=f"op {op.name!r}, a collective of {', '.join(sorted(hosts))}",
                remedy="use topology 'sharded'",
            )


def _cast(name: str) -> _Codec:
    dtype = _DTYPES[name]
    return _Codec("EncodeCast", "DecodeCast", {name: dtype}, {"dtype": dtype})


def _int8(block: int) -> _Codec:
    parts, settings = {"int8": "int8", "scales": "float32"}, {"block": block}
    return _Codec("EncodeInt8", "DecodeInt8", parts, settings, settings, feedback=True)


def _topk(share: float) -> _Codec:
    parts, settings = {"values": "float32", "indices": "int32"}, {"share": share}
    return _Codec("EncodeTopK", "DecodeTopK", parts, settings, feedback=True, sized=True)


class _Compression:
    """A step while its copies are replaced."""

    def __init__(self, step: Graph, devices: bool) -> None:
        self.step, self.devices = step, devices
        self.builder = Builder(step)
        self.encoded: dict[str, tuple[str, ...]] = {}
        """By blob its encoded blobs, which all its copies share."""

    def graph(self, gradients: _Codec, parameters: _Codec | None) -> Graph:
        reduced = _led_to_reductions(self.step)
        rounded: dict[str, _Codec] = {}
        for copy in self._crossing():
            source = copy.inputs[0]
            if copy.outputs[0] in reduced and source not in self.step.states:
                self._replace(copy, gradients)
            elif parameters is not None and self._is_parameter(copy):
                self._replace(copy, parameters)
                rounded[source] = parameters
        for source, codec in rounded.items():
            self._round_at_owner(source, codec)
        return check(insert_copies(self.builder.graph()))

    def _crossing(self) -> Iterator[Op]:
        """The copies that are worth encoding, by their ends and sizes."""
        step = self.step
        for op in step.ops.values():
            if op.kind != "Copy":
                continue
            source, target = step.blobs[op.inputs[0]], step.blobs[op.outputs[0]]
            one, two = source.location, target.location
            crosses = one != two if self.devices else one.host != two.host
            maker = step.producers.get(source.name)
            encoded = maker is not None and maker.kind in _ENCODERS
            large = source.dtype == "float32" and size_in_bytes(source) >= _TINY
            if crosses and large and not encoded:
                yield op

    def _is_parameter(self, copy: Op) -> bool:
        """Whether a copy brings a parameter to a replica."""
        state = self.step.states.get(copy.inputs[0])
        readers = self.step.consumers[copy.outputs[0]]
        exact = any(origin_of(reader).role == "update" for reader in readers)
        return state is not None and state.trainable and not exact

    def _replace(self, copy: Op, codec: _Codec) -> None:
        """Replace a copy by a decoder. `insert_copies` adds the copies of its inputs."""
        target = self.step.blobs[copy.outputs[0]]
        self.builder.ops[copy.name] = self._decoder(copy.name, copy.inputs[0], target, codec)

    def _decoder(self, name: str, source: str, target: Blob, codec: _Codec) -> Op:
        settings = {**codec.decoding, "shape": target.shape} if codec.sized else codec.decoding
        return Op(
            name,
            codec.decoder,
            self._encoded(source, codec),
            (target.name,),
            settings,
            target.location,
            BESIDE,
            origin=self._origin(source),
        )

    def _encoded(self, source: str, codec: _Codec) -> tuple[str, ...]:
        """The encoded blobs of a blob, with their encoder, which is added once."""
        if source in self.encoded:
            return self.encoded[source]
        builder, blob = self.builder, self.step.blobs[source]
        names = []
        for part, dtype in codec.parts.items():
            name = builder.fresh(encoded_of(source, part))
            if codec.feedback:
                builder.blob(name, None, dtype, blob.location)
            else:  # a cast keeps shape and layout
                builder.add(replace(blob, name=name, dtype=dtype))
            names.append(name)
        self.encoded[source] = tuple(names)
        inputs, outputs = [source], list(names)
        if codec.feedback:
            residual = builder.fresh(slot_of("residual", source))
            following = builder.fresh(f"{residual}/next")
            for name in (residual, following):
                builder.add(replace(blob, name=name))
            builder.add(State(residual, following))
            inputs.append(residual)
            outputs.append(following)
        builder.op(
            builder.fresh(encoder_of(source)),
            codec.encoder,
            inputs,
            outputs,
            codec.encoding,
            location=blob.location,
            lane=BESIDE,
            origin=self._origin(source),
        )
        return self.encoded[source]

    def _round_at_owner(self, source: str, codec: _Codec) -> None:
        """Let the replicas of the owner's host read the rounded value; updates read the exact
        one."""
        builder, blob = self.builder, self.step.blobs[source]
        rounded = replace(blob, name=builder.fresh(encoded_of(source, "rounded")))
        readers = [
            name
            for name, op in builder.ops.items()
            if source in op.inputs and op.kind not in _ENCODERS and origin_of(op).role != "update"
        ]
        if not readers:
            return
        builder.add(rounded)
        for name in readers:
            op = builder.ops[name]
            inputs = tuple(rounded.name if read == source else read for read in op.inputs)
            builder.ops[name] = replace(op, inputs=inputs)
        builder.add(self._decoder(rounded.name, source, rounded, codec))

    def _origin(self, source: str) -> Origin:
        maker = self.step.producers.get(source)
        return replace(
            Origin(source) if maker is None else origin_of(maker), of=source, role="copy"
        )


def _led_to_reductions(step: Graph) -> frozenset[str]:
    """The blobs that are reduced, and whose sums only updates read: gradients of parameters.

    Losses and statistics are not among them, since no update reads them. Neither are sums that the
    backward itself reads, as with synchronised batch norm.
    """
    reduces: dict[str, bool] = {}
    """By op that leads to updates alone, whether there is a reduction on the way."""
    reduced: set[str] = set()
    for name in reversed(step.order):
        op = step.ops[name]
        role = "copy" if op.kind == "Copy" else origin_of(op).role
        read = [blob for blob in op.outputs if blob != NOTHING]
        readers = [reader.name for blob in read for reader in step.consumers[blob]]
        if role == "update":
            reduces[name] = False
        elif role in ("copy", "reduce") and readers and reduces.keys() >= set(readers):
            reduces[name] = role == "reduce" or any(reduces[reader] for reader in readers)
    for blob in step.blobs:
        readers = [reader.name for reader in step.consumers[blob]]
        if reduces.keys() >= set(readers) and any(reduces[reader] for reader in readers):
            reduced.add(blob)
    return frozenset(reduced)


def _refuse_one(step: Graph, between: str) -> None:
    """Refuse a step without copies between hosts, or devices."""
    devices = devices_of(step)
    ends = devices if between == "devices" else {location.host for location in devices}
    if len(ends) > 1:
        return
    one = "device" if between == "devices" else "host"
    remedy = f"name devices of several {one}s, or leave compression out (--compress)"
    what = f"there is nothing to compress: the step is on one {one}"
    found = ", ".join(map(str, devices))
    raise wrong_devices(what, f"devices of several {one}s", found, remedy)
