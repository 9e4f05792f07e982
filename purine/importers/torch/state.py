"""What a forward leaves behind in a module, other than by writing to its buffers in place.

A buffer that is assigned anew is a state of the net, as one that is written to. Other attributes
are no states: a net computes the same in every iteration. So when a forward changes some, it is
traced once more with what it left behind, and once as if it had run a million times. Where that
makes another program the module is refused; a counter that nobody reads does no harm.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from purine.errors import GraphError
from purine.importers.torch.patched import called_by_user, is_users, patched, users_line

__all__ = [
    "Attributes",
    "Buffers",
    "Change",
    "holds_tensors_alone",
    "noting_lines",
    "refuse_changes",
    "refuse_written",
    "refuse_written_constant",
    "tensors_of",
]

_MANY = 1_000_000
_ABSENT = object()
_NUMBERS = (bool, int, float, str, type(None))
_OWN = frozenset(nn.Module().__dict__)  # what every module has
_HOOKS = tuple(name for name in _OWN if name.startswith(("_forward_hooks", "_forward_pre_hooks")))


@dataclass(frozen=True, slots=True)
class Change:
    """An attribute of a module that its forward changed; a container is told as a whole."""

    part: nn.Module
    module: str
    name: str
    before: Any
    after: Any
    where: str | None


class Attributes:
    """The attributes of modules as they are now, but for parameters, buffers and submodules.

    A module that installs hooks in its first call notes in a new attribute that it did. Both are
    taken back, and the note is no change: every call but the first finds both.
    """

    def __init__(self, root: nn.Module) -> None:
        hooks = [part.__dict__[name] for part in root.modules() for name in _HOOKS]
        self.hooks = [(mapping, dict(mapping)) for mapping in hooks]
        self.parts = [
            (name, part, {key: (value, _copy(value)) for key, value in _attributes(part)})
            for name, part in root.named_modules()
            if part is not root and not type(part).__module__.startswith("torch.")
        ]

    def changes(self, lines: Mapping[tuple[int, str], str | None]) -> list[Change]:
        """What is different now; `lines` are those that assigned an attribute of a module."""
        found = []
        hooked = any(mapping != before for mapping, before in self.hooks)
        for module, part, kept in self.parts:
            now = dict(_attributes(part))
            for key in kept if hooked else dict.fromkeys((*kept, *now)):
                _, before = kept.get(key, (_ABSENT, _ABSENT))
                after = now.get(key, _ABSENT)
                if not _same(before, after):
                    where = lines.get((id(part), key)) or _line_of(part)
                    found.append(Change(part, module, key, before, _copy(after), where))
        return found

    def restore(self) -> None:
        """Give the modules the attributes back that they had, containers with what was in them."""
        for mapping, before in self.hooks:
            mapping.clear()
            mapping.update(before)
        for _, part, kept in self.parts:
            for key in [key for key, _ in _attributes(part) if key not in kept]:
                del part.__dict__[key]
            for key, (value, contents) in kept.items():
                part.__dict__[key] = value
                if isinstance(value, list | deque):
                    value.clear()
                    value.extend(contents)
                elif isinstance(value, dict | set):
                    value.clear()
                    value.update(contents)


class Buffers:
    """The buffers of modules as they are now, to find those that are assigned."""

    def __init__(self, root: nn.Module) -> None:
        self.kept = [
            (f"{prefix}.{name}" if prefix else name, part, name, value)
            for prefix, part in root.named_modules()
            for name, value in part._buffers.items()
            if value is not None
        ]

    def write_back(self, lines: Mapping[tuple[int, str], str | None]) -> None:
        """Write what was assigned into the buffers themselves: an export follows that."""
        for path, part, name, buffer in self.kept:
            own = path.removeprefix("module.")
            where = lines.get((id(part), name)) or _line_of(part)
            now = part._buffers.get(name)
            if now is not buffer:
                self._check(own, buffer, now, where)
                assert now is not None
                with torch.no_grad():
                    buffer.copy_(now)
                part._buffers[name] = buffer
            if buffer.requires_grad or (now is not None and now.requires_grad):
                raise GraphError(
                    f"buffer {own!r} is given a value that has a gradient",
                    where=where,
                    blob=own,
                    expected="buffers that hold plain values: a gradient ends with its iteration",
                    found="a value that depends on parameters",
                    remedy=f"assign {name} what x.detach() gives, or do it under torch.no_grad()",
                )

    def _check(self, name: str, before: Tensor, after: Tensor | None, where: str | None) -> None:
        if after is None or (after.shape, after.dtype) != (before.shape, before.dtype):
            found = "nothing" if after is None else f"{after.dtype} {list(after.shape)}"
            raise GraphError(
                f"buffer {name!r} is given a value of another form",
                where=where,
                blob=name,
                expected=f"{before.dtype} {list(before.shape)}, as the buffer has",
                found=found,
                remedy="give the buffer its final shape and dtype before the import",
            )


@contextmanager
def noting_lines() -> Iterator[dict[tuple[int, str], str | None]]:
    """Note which line of the user's assigns which attribute of a module."""
    lines: dict[tuple[int, str], str | None] = {}
    plain = nn.Module.__setattr__

    def assign(self: nn.Module, name: str, value: Any) -> None:
        if called_by_user():
            lines[id(self), name] = users_line()
        plain(self, name, value)

    with patched(nn.Module, "__setattr__", assign):
        yield lines


@contextmanager
def changed(changes: Sequence[Change], *, many: bool) -> Iterator[None]:
    """Modules with what their forward left behind, as if it had run once or very many times.

    Tensors have values of no meaning: a program that reads them has them as constants.
    """
    for change in changes:
        value = _real(change.after)
        if many and _is_counter(change):
            value = change.before + _MANY * (change.after - change.before)
        if value is _ABSENT:
            change.part.__dict__.pop(change.name, None)
        else:
            change.part.__dict__[change.name] = value
    try:
        yield
    finally:
        for change in changes:
            if change.before is _ABSENT:
                change.part.__dict__.pop(change.name, None)
            else:
                change.part.__dict__[change.name] = change.before


def refuse_changes(changes: Sequence[Change], differs: Callable[[], bool]) -> None:
    """Refuse a module whose program `differs` by what its forward left behind."""
    known = [change for change in changes if _is_plain(change.after)]
    counters = any(map(_is_counter, known))
    for many in (False, True) if counters else (False,) if known else ():
        with changed(known, many=many):
            if not differs():
                continue
        for change in known:
            with changed([change], many=many):
                if len(known) == 1 or differs():
                    raise _refused(change)
        raise _refused(known[0])


def _refused(change: Change) -> GraphError:
    path = f"{change.module}.{change.name}".removeprefix("module").removeprefix(".")
    if isinstance(change.after, Tensor):
        remedy = f"make it a buffer: self.register_buffer({change.name!r}, ...)"
    else:
        remedy = (
            "keep it in a buffer and compute with that tensor; "
            "if only the first call sets it, call the module once before the import"
        )
    return GraphError(
        f"attribute {path!r} is changed by the forward, which then computes something else",
        where=change.where,
        expected="a forward that computes the same in every iteration, but for its buffers",
        found=f"{_short(change.before)}, then {_short(change.after)}",
        remedy=remedy,
    )


def refuse_written(step: nn.Module, exported: Any) -> None:
    """Refuse a program that writes to a parameter."""
    for spec in exported.graph_signature.output_specs:
        if spec.kind.name == "PARAMETER_MUTATION":
            name = spec.target.removeprefix("module.")
            raise GraphError(
                f"parameter {name!r} is changed by the module's own forward",
                where=_owner_line(step, spec.target),
                blob=name,
                expected="parameters that only a solver changes",
                found="a write to the parameter",
                remedy="make it a buffer, or compute with a new tensor and leave the parameter",
            )


def refuse_written_constant(step: nn.Module, error: Exception) -> None:
    """Refuse a forward that writes to a tensor which is no buffer, where that is torch's error."""
    found = re.search(r"Constant (\S+) is mutated in the forward", str(error))
    if found is not None:
        name = found.group(1).removeprefix("module.")
        raise GraphError(
            f"tensor {name!r} is changed by the forward, and is no buffer",
            where=_owner_line(step, found.group(1)),
            expected="buffers for the values that a forward carries on",
            found="a tensor that the module does not register",
            remedy=f"make it a buffer: self.register_buffer({name.rpartition('.')[2]!r}, ...)",
        ) from error


def _owner_line(step: nn.Module, path: str) -> str | None:
    """The forward of the innermost module of the user's that a tensor belongs to."""
    while path:
        path = path.rpartition(".")[0]
        with suppress(AttributeError):
            line = _line_of(step.get_submodule(path))
            if path and line is not None and is_users(line):
                return line
    return None


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a value of an attribute."""
    if type(value) in (list, tuple, deque):
        return [tensor for item in value for tensor in tensors_of(item)]
    if type(value) is dict:
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    return [value] if isinstance(value, Tensor) else []


def holds_tensors_alone(value: Any) -> bool:
    """Whether a value is a tensor, or a container of tensors."""
    if type(value) in (list, tuple, deque):
        return all(map(holds_tensors_alone, value))
    if type(value) is dict:
        return all(map(holds_tensors_alone, value.values()))
    return isinstance(value, Tensor)


def _attributes(part: nn.Module) -> list[tuple[str, Any]]:
    return [item for item in part.__dict__.items() if item[0] not in _OWN]


def _copy(value: Any) -> Any:
    """A container with copies of the containers in it; anything else as it is."""
    if type(value) in (list, tuple, set, deque):
        return type(value)([_copy(item) for item in value])
    return {key: _copy(item) for key, item in value.items()} if type(value) is dict else value


def _same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if type(one) in (list, tuple, deque):
        return len(one) == len(two) and all(map(_same, one, two))
    if type(one) is dict:
        return list(one) == list(two) and all(map(_same, one.values(), two.values()))
    return one is two or (isinstance(one, (*_NUMBERS, set)) and one == two)


def _is_plain(value: Any) -> bool:
    """Whether a value can be given to a module in place of what a forward left there."""
    if type(value) in (list, tuple, set, deque):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return value is _ABSENT or isinstance(value, (*_NUMBERS, Tensor))


def _real(value: Any) -> Any:
    """A value with real tensors: those of a trace have none."""
    if isinstance(value, Tensor):
        return torch.ones(value.shape, dtype=value.dtype)
    if type(value) in (list, tuple, deque):
        return type(value)([_real(item) for item in value])
    return {key: _real(item) for key, item in value.items()} if type(value) is dict else value


def _is_counter(change: Change) -> bool:
    numbers = (change.before, change.after)
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = f"a tensor of size {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _line_of(part: nn.Module) -> str | None:
    code = getattr(type(part).forward, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
