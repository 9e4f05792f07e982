"""Kinds are pure: an op writes over no input, and draws no random numbers that no seed decides.

The schema and tags of an ATen overload tell whether it is pure. Other kernels are watched while
they run on tensors without values. In-place variants of kinds are exempt: a run uses them only
where no other op reads the inputs.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch._C import Argument
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from purine.errors import KindError
from purine.graph import Op
from purine.registry import aten
from purine.registry.kind import Kind, op_error
from purine.registry.lookup import kinds

__all__ = ["ImpureCall", "is_foreign", "refuse_impure", "refused_call", "watched"]

_RUNNING = {
    "aten::_batch_norm_impl_index": "training",
    "aten::batch_norm": "training",
    "aten::cudnn_batch_norm": "training",
    "aten::instance_norm": "use_input_stats",
    "aten::miopen_batch_norm": "training",
    "aten::native_batch_norm": "training",
}
"""Operators that write over their running statistics without saying so in their schema, and the
argument with which they do."""

_OWN = "purine."


class ImpureCall(Exception):
    """What a kernel called; `wrote` is the number of the input that it writes over."""

    def __init__(self, what: str, wrote: int | None = None, instead: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.wrote = wrote
        self.instead = instead


def is_foreign(kind: Kind) -> bool:
    """Whether the kernel of a kind is somebody else's, of which nothing is known beforehand."""
    function = kind.function
    if function is None or isinstance(function, OpOverload):
        return False
    return not str(getattr(function, "__module__", "")).startswith(_OWN)


def refuse_impure(op: Op, kind: Kind) -> None:
    """Raise `KindError` for an ATen op that writes over an input or draws random numbers."""
    overload = kind.function
    if not isinstance(overload, OpOverload):
        return
    settings = {
        argument.name: op.attributes.get(argument.name, argument.default_value)
        for argument in overload._schema.arguments
    }
    if _draws(overload, settings):
        switch = next((name for name in ("dropout_p", "dropout") if name in settings), None)
        remedy = {
            "dropout_p": "set dropout_p to 0; write the layer with Softmax and Dropout if needed",
            "dropout": "set dropout to 0, and put a Dropout between the layers",
            None: f"use a kind that draws by seed, stream and iteration: {_random_kinds()}",
        }[switch]
        raise _drawing(op, f"{op.kind} draws from torch's own generator", remedy)
    absent = [name for name, value in op.attributes.items() if value is None]
    tensors = [item.name for item in overload._schema.arguments if "Tensor" in str(item.type)]
    given = [name for name in tensors if name not in absent]
    for name in _written(overload, settings):
        if name in given and len(op.inputs) > given.index(name):
            blob = op.inputs[given.index(name)]
            pure = _pure_form(overload) or "a kind that returns a new value"
            raise _writing(op, blob, f"{op.kind} writes over {name!r}", f"use {pure}")


def refused_call(op: Op, kind: Kind, call: ImpureCall) -> KindError:
    """The error for an op whose kernel made such a call."""
    called = f"the kernel of {kind.name} calls {call.what}"
    if call.wrote is None:
        remedy = f"give {kind.name} the inputs seed and iteration, and draw with "
        remedy += f"purine.kinds.random.random_bits; or use a kind that does: {_random_kinds()}"
        return _drawing(op, called, remedy)
    instead = f", or use {call.instead}, which returns a new value" if call.instead else ""
    remedy = f"let the kernel write to a copy, as x.clone() is{instead}"
    return _writing(op, op.inputs[call.wrote], called, remedy)


@contextmanager
def watched(inputs: Sequence[Tensor]) -> Iterator[None]:
    """Raise `ImpureCall` where a call writes over one of the inputs or draws random numbers."""
    before = _generators()
    with _Watch(inputs):
        yield
    if _generators() != before:
        raise ImpureCall("Python's or numpy's random numbers")


class _Watch(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.memory = {t.untyped_storage()._cdata: n for n, t in reversed([*enumerate(inputs)])}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        given = dict(zip((item.name for item in arguments), args, strict=False)) | dict(kwargs)
        settings = {item.name: given.get(item.name, item.default_value) for item in arguments}
        if _draws(func, settings):
            raise ImpureCall(aten.name_of(func))
        for name in _written(func, settings):
            values = given.get(name)
            for value in values if isinstance(values, list | tuple) else (values,):
                if isinstance(value, Tensor):
                    index = self.memory.get(value.untyped_storage()._cdata)
                    if index is not None:
                        raise ImpureCall(aten.name_of(func), index, _pure_form(func))
        return func(*args, **kwargs)


def _draws(overload: OpOverload, settings: Mapping[str, object]) -> bool:
    """Whether a call draws random numbers; dropout that is switched off does not."""
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    chances = [settings[name] for name in ("dropout_p", "dropout") if name in settings]
    training = [settings[name] for name in ("train", "training") if name in settings]
    return 0 not in chances and False not in training


def _written(overload: OpOverload, settings: Mapping[str, object]) -> list[str]:
    schema = overload._schema
    written = [item.name for item in schema.arguments if _is_written(item)]
    if settings.get(_RUNNING.get(schema.name, "")):
        written += ["running_mean", "running_var"]
    return written


def _is_written(argument: Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _pure_form(overload: OpOverload) -> str | None:
    """The overload with the same arguments that returns what this one writes, as a kind."""
    schema = overload._schema
    operator = schema.name.partition("::")[2]
    wanted = [i.name for i in schema.arguments if not (i.kwarg_only and _is_written(i))]
    plain = operator.removesuffix("_")
    names = [plain, f"{plain}_functional"]
    if schema.name in _RUNNING:
        names = ["_native_batch_norm_legit_functional"]
        wanted = [name for name in wanted if name != "cudnn_enabled"]
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        for other in packet.overloads() if packet is not None else ():
            pure = getattr(packet, other)
            impure = pure._schema.is_mutable or torch.Tag.nondeterministic_seeded in pure.tags
            if not impure and [item.name for item in pure._schema.arguments] == wanted:
                return aten.name_of(pure)
    return None


def _random_kinds() -> str:
    modules = {name: getattr(kind.function, "__module__", None) for name, kind in kinds().items()}
    return ", ".join(sorted(name for name in modules if modules[name] == f"{_OWN}kinds.random"))


def _generators() -> tuple[object, ...]:
    return random.getstate(), pickle.dumps(np.random.get_state())


def _drawing(op: Op, found: str, remedy: str) -> KindError:
    expected = "random numbers that are the same for the same seed of the run"
    return op_error(op, "draws random numbers that no seed decides", expected, found, remedy)


def _writing(op: Op, blob: str, found: str, remedy: str) -> KindError:
    expected = "an op that leaves its inputs as they are: others may read them too"
    return op_error(op, f"writes over its input {blob!r}", expected, found, remedy, blob=blob)
