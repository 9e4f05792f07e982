"""Attributes of modules that a forward changes, other than by writing to buffers in place.

A buffer that is assigned becomes a state of the net, like one that is written to. Other attributes
cannot: a net computes the same in every iteration. So a forward that changes some is traced again
with the new values, and with counters as if it had run a million times. Where the program then
differs the module is refused; a counter that nobody reads does no harm.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from purine.errors import GraphError
from purine.importers.torch.batch import own_name
from purine.importers.torch.lines import definition_line, is_called_by_user, is_user_file, user_line
from purine.importers.torch.tracing import AnyFunction, Lines, current

__all__ = [
    "Attributes",
    "Buffers",
    "Change",
    "changed",
    "leaves_of",
    "refuse_changes",
    "refuse_written",
    "refuse_written_constant",
    "set_attribute",
    "tensors_of",
    "written_parameters",
]

_MANY = 1_000_000
_ABSENT = object()
_NUMBERS = (bool, int, float, str, type(None))
_OWN = frozenset(nn.Module().__dict__)  # what every module has
_HOOKS = tuple(name for name in _OWN if name.startswith(("_forward_hooks", "_forward_pre_hooks")))


@dataclass(frozen=True, slots=True)
class Change:
    """An attribute of a module that its forward changed; a container counts as a whole."""

    part: nn.Module
    module: str
    name: str
    before: object
    after: object
    where: str | None


class Attributes:
    """A snapshot of the attributes of modules, without parameters, buffers and submodules.

    A module that installs hooks in its first call may note that in a new attribute. `restore`
    takes back both, and the note does not count as a change: all later calls find it.
    """

    def __init__(self, root: nn.Module) -> None:
        hooks = [part.__dict__[name] for part in root.modules() for name in _HOOKS]
        self.hooks = [(mapping, dict(mapping)) for mapping in hooks]
        self.parts = [
            (name, part, {key: (value, _copy(value)) for key, value in _attributes(part)})
            for name, part in root.named_modules()
            if part is not root and not type(part).__module__.startswith("torch.")
        ]

    def changes(self, lines: Lines) -> list[Change]:
        """The attributes that differ from the snapshot."""
        changes = []
        hooked = any(mapping != before for mapping, before in self.hooks)
        for module, part, kept in self.parts:
            now = dict(_attributes(part))
            for key in kept if hooked else kept | now:
                _, before = kept.get(key, (_ABSENT, _ABSENT))
                after = now.get(key, _ABSENT)
                if not _same(before, after):
                    where = _line(part, key, lines)
                    changes.append(Change(part, module, key, before, _copy(after), where))
        return changes

    def restore(self) -> None:
        """Give the modules the attributes of the snapshot, containers with their contents."""
        for mapping, before in self.hooks:
            mapping.clear()
            mapping.update(before)
        for _, part, kept in self.parts:
            for key in [key for key, _ in _attributes(part) if key not in kept]:
                del part.__dict__[key]
            for key, (value, contents) in kept.items():
                part.__dict__[key] = value
                if isinstance(value, list | deque) and isinstance(contents, list | deque):
                    value.clear()
                    value.extend(contents)
                elif isinstance(value, dict | set) and isinstance(contents, dict | set):
                    value.clear()
                    value.update(contents)


class Buffers:
    """A snapshot of the buffers of modules, which tells those that a forward assigns."""

    def __init__(self, root: nn.Module) -> None:
        self.kept = [
            (own_name(f"{path}.{name}"), part, name, value)
            for path, part in root.named_modules()
            for name, value in part._buffers.items()
            if value is not None
        ]

    def write_back(self, lines: Lines) -> None:
        """Copy assigned values into the buffers themselves: an export follows that."""
        for own, part, name, buffer in self.kept:
            where = _line(part, name, lines)
            now = part._buffers.get(name)
            if now is not buffer:
                if now is None or (now.shape, now.dtype) != (buffer.shape, buffer.dtype):
                    what = f"buffer {own!r} is given a value of another form"
                    expected = f"{buffer.dtype} {list(buffer.shape)}, as the buffer has"
                    found = "nothing" if now is None else f"{now.dtype} {list(now.shape)}"
                    remedy = "give the buffer its final shape and dtype before the import"
                    raise GraphError(what, expected, found, remedy, where=where, blob=own)
                with torch.no_grad():
                    buffer.copy_(now)
                part._buffers[name] = buffer
            if buffer.requires_grad or (now is not None and now.requires_grad):
                what = f"buffer {own!r} is given a value that has a gradient"
                expected = "buffers that hold plain values: a gradient ends with its iteration"
                found = "a value that depends on parameters"
                remedy = f"assign {name} what x.detach() gives, or do it under torch.no_grad()"
                raise GraphError(what, expected, found, remedy, where=where, blob=own)


def set_attribute(original: AnyFunction) -> AnyFunction:
    """`nn.Module.__setattr__` that notes the user's line."""

    def assign(self: nn.Module, name: str, value: object) -> None:
        trace = current()
        if trace is not None and is_called_by_user(sys._getframe(1)):
            trace.assigned[id(self), name] = user_line()
        original(self, name, value)

    return assign


@contextmanager
def changed(changes: Sequence[Change], *, many: bool = False) -> Iterator[None]:
    """Give modules the attributes that a forward left, as if it had run once or `many` times.

    Tensors get values without a meaning: a program that reads them has them as constants.
    """
    before = [(change.part, dict(change.part.__dict__)) for change in changes]
    for change in changes:
        count = _counted(change) if many else None
        value = _mapped(change.after, _real) if count is None else count
        change.part.__dict__[change.name] = value
        if change.after is _ABSENT:
            del change.part.__dict__[change.name]
    try:
        yield
    finally:
        for part, attributes in before:
            part.__dict__.clear()
            part.__dict__.update(attributes)


def refuse_changes(changes: Sequence[Change], differs: Callable[[], bool]) -> None:
    """Refuse a module whose program `differs` with the attributes that its forward left."""
    known = [change for change in changes if _is_plain(change.after)]
    counters = any(_counted(change) is not None for change in known)
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
    path = own_name(f"{change.module}.{change.name}")
    remedy = "keep it in a buffer; if only the first call sets it, call the module once before"
    if isinstance(change.after, Tensor):
        remedy = f"make it a buffer: self.register_buffer({change.name!r}, ...)"
    what = f"attribute {path!r} is changed by the forward, which then computes something else"
    expected = "a forward that computes the same in every iteration, but for its buffers"
    actual = f"{_short(change.before)}, then {_short(change.after)}"
    return GraphError(what, where=change.where, expected=expected, found=actual, remedy=remedy)


def refuse_written(step: nn.Module, exported: ExportedProgram) -> None:
    """Refuse a program that writes to a parameter."""
    for path in written_parameters(exported):
        name = own_name(path)
        what = f"parameter {name!r} is changed by the module's own forward"
        expected, found = "parameters that only a solver changes", "a write to the parameter"
        remedy = "make it a buffer, or compute with a new tensor and leave the parameter; if it "
        remedy += "changes between modes, call the module once as module.train() before the import"
        raise GraphError(what, expected, found, remedy, where=_owner_line(step, path), blob=name)


def written_parameters(exported: ExportedProgram) -> list[str]:
    """The paths of the parameters that a functional program changes."""
    specs = exported.graph_signature.output_specs
    return [str(spec.target) for spec in specs if spec.kind.name == "PARAMETER_MUTATION"]


def refuse_written_constant(step: nn.Module, error: Exception) -> None:
    """Refuse a forward that writes to a tensor which is no buffer, if that is torch's error."""
    match = re.search(r"Constant (\S+) is mutated in the forward", str(error))
    if match is not None:
        name = own_name(match.group(1))
        what = f"tensor {name!r} is changed by the forward, and is no buffer"
        expected = "buffers for the values that a forward keeps for the next iteration"
        found = "a tensor that the module does not register"
        remedy = f"make it a buffer: self.register_buffer({name.rpartition('.')[2]!r}, ...)"
        where = _owner_line(step, match.group(1))
        raise GraphError(what, expected, found, remedy, where=where) from error


def _owner_line(step: nn.Module, path: str) -> str | None:
    """The forward of the innermost user module that a tensor belongs to."""
    while path:
        path = path.rpartition(".")[0]
        with suppress(AttributeError):
            line = definition_line(type(step.get_submodule(path)).forward)
            if path and line is not None and is_user_file(line):
                return line
    return None


def tensors_of(value: object) -> list[Tensor]:
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, Tensor)]


def _attributes(part: nn.Module) -> list[tuple[str, object]]:
    return [item for item in part.__dict__.items() if item[0] not in _OWN]


def _line(part: nn.Module, name: str, lines: Lines) -> str | None:
    return lines.get((id(part), name)) or definition_line(type(part).forward)


def _items(value: object) -> list[object] | None:
    """The items of a container, None for anything else. A set has no order, so it is none."""
    if type(value) is list or type(value) is tuple or type(value) is deque:
        return list(value)
    return list(value.values()) if type(value) is dict else None


def leaves_of(value: object) -> list[object]:
    """What the value of an attribute holds that is no container."""
    items = _items(value)
    return [value] if items is None else [leaf for item in items for leaf in leaves_of(item)]


def _mapped(value: object, function: Callable[[object], object]) -> object:
    """A copy of a container and of the containers in it, with a function of each other item."""
    if type(value) is dict:
        return {key: _mapped(item, function) for key, item in value.items()}
    items = _items(value)
    if items is None:
        return function(value)
    container: AnyFunction = type(value)
    return container(_mapped(item, function) for item in items)


def _copy(value: object) -> object:
    """A container with copies of the containers in it; anything else as it is."""
    return _mapped(value, lambda leaf: set(leaf) if type(leaf) is set else leaf)


def _real(leaf: object) -> object:
    """A real tensor in place of a fake one of a trace; anything else as it is."""
    return torch.ones(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _same(one: object, two: object) -> bool:
    if type(one) is not type(two):
        return False
    mine, theirs = _items(one), _items(two)
    if mine is not None and theirs is not None:
        keys = type(one) is not dict or type(two) is not dict or list(one) == list(two)
        return keys and len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return one is two or (isinstance(one, (*_NUMBERS, set)) and one == two)


def _is_plain(value: object) -> bool:
    """Whether a value can be given to a module in place of what a forward left there."""
    return all(
        all(map(_is_plain, leaf))
        if type(leaf) is set
        else leaf is _ABSENT or isinstance(leaf, (*_NUMBERS, Tensor))
        for leaf in leaves_of(value)
    )


def _counted(change: Change) -> int | float | None:
    """The value of a counter after very many forwards, None for other attributes."""
    match change.before, change.after:
        case (bool(), _) | (_, bool()):
            return None
        case (int() | float() as before, int() | float() as after):
            return before + _MANY * (after - before)
    return None


def _short(value: object) -> str:
    if value is _ABSENT:
        return "nothing"
    text = f"a tensor of size {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
