"""Checks of arguments of public functions against their annotations.

A public function is decorated with `checked`. A call whose arguments do not fit the annotations is
an error that names the argument, what it may be and what was passed. Functions check themselves
what annotations cannot say (ranges, sizes, names).
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, Union

import numpy as np

from purine.errors import ConfigError, E
from purine.nearest import nearest_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "at_least",
    "check_fields",
    "checked",
    "conforms",
    "describe",
    "finite",
    "fraction",
    "not_negative",
    "pair",
    "positive",
    "shown",
    "wrong_value",
]

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise `ConfigError` for arguments that do not fit its annotations.

    Scalars of numpy are converted to Python's numbers.

    >>> @checked
    ... def repeat(text: str, *, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("ab", times=np.int64(3))
    'ababab'
    >>> repeat("ab", times="3")
    Traceback (most recent call last):
    purine.errors.ConfigError: repeat: times is '3'
      expected: a whole number
      found: '3'
      to do: change times
    """
    form: _Form | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal form
        if form is None:
            form = _Form.of(function)
        if not form.fits(args, kwargs):
            bound = form.bind(args, kwargs)
            return function(*bound.args, **bound.kwargs)
        return function(*args, **kwargs)

    return call


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The parameters of a function; `positional` and `named` are for the quick check of `fits`."""

    label: str
    signature: inspect.Signature
    hints: Mapping[str, object]
    positional: tuple[_Test, ...]
    named: Mapping[str, _Test]
    required: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., object]) -> _Form:
        owner, _, name = function.__qualname__.rpartition(".")
        signature, hints = inspect.signature(function), typing.get_type_hints(function)
        plain = [item for item in signature.parameters.values() if item.kind in _PLAIN]
        tests = {item.name: (item.name, *_quick(hints.get(item.name, object))) for item in plain}
        positional = tuple(tests[item.name] for item in plain if item.kind is not _PLAIN[1])
        required = frozenset(item.name for item in plain if item.default is item.empty)
        label = owner if name == "__init__" else name
        return cls(label, signature, hints, positional, tests, required)

    def fits(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether the arguments surely fit; functions with `*args` or `**kwargs` need `bind`."""
        if len(args) > len(self.positional):
            return False
        missing = self.required
        for value, (key, types_, annotation) in zip(args, self.positional, strict=False):
            if type(value) not in types_ and not conforms(value, annotation):
                return False
            if key in missing:
                missing = missing - {key}
        for key, value in kwargs.items():
            test = self.named.get(key)
            if test is None or (type(value) not in test[1] and not conforms(value, test[2])):
                return False
        return missing <= kwargs.keys()

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        """The arguments with scalars of numpy converted; `ConfigError` if one does not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _misnamed(self, args, kwargs, error) from None
        for key, value in bound.arguments.items():
            kind = self.signature.parameters[key].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                values = bound.arguments[key] = tuple(map(_plain, value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                values = tuple(value.values())
            else:
                values = (_plain(value),)
                bound.arguments[key] = values[0]
            annotation = self.hints.get(key, object)
            for number, item in enumerate(values):
                if not conforms(item, annotation):
                    many = kind is inspect.Parameter.VAR_POSITIONAL
                    which = f"{key}[{number}]" if many else key
                    caller = self.called(bound.arguments)
                    raise _misfit(f"{caller}: {which}", which, item, annotation)
        return bound

    def called(self, arguments: Mapping[str, object]) -> str:
        """The name of the function, with that of the layer which it adds to a net."""
        name = arguments.get("name")
        layer = self.hints.get("name") == (str | None)
        return f"{self.label} {shown(name)}" if layer and isinstance(name, str) else self.label


_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNIONS = (Union, types.UnionType)

_Test: TypeAlias = tuple[str, frozenset[type], object]
"""The name of an argument, types whose instances always fit, and its annotation."""


def _quick(annotation: object) -> tuple[frozenset[type], object]:
    union = typing.get_origin(annotation) in _UNIONS
    options = typing.get_args(annotation) if union else (annotation,)
    exact = {option for option in options if isinstance(option, type)}
    return frozenset(exact | ({int} if float in exact else set())), annotation


def check_fields(value: DataclassInstance) -> None:
    """Raise `ConfigError` for a field that does not fit its annotation; for `__post_init__`."""
    hints = _hints_of(type(value))
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if not conforms(content, hints[field.name]):
            what = f"{type(value).__name__}: {field.name}"
            raise _misfit(what, field.name, content, hints[field.name])


_hints_of = functools.cache(typing.get_type_hints)


def conforms(value: object, annotation: object) -> bool:
    """Whether a value has the annotated type; a list fits where a tuple is annotated.

    >>> conforms(2, int | tuple[int, int]), conforms((2, 3), int | tuple[int, int])
    (True, True)
    >>> conforms(True, int), conforms(1, float), conforms("max", Literal["max", "average"])
    (False, True, True)
    """
    if type(value) is annotation or annotation is Any or annotation is object:
        return True
    annotation = _meaning(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, TypeVar):
        return True
    if origin in _UNIONS:
        return any(conforms(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in arguments)
    if annotation in (None, type(None)):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is collections.abc.Callable:
        return callable(value)
    if not isinstance(origin, type):
        return not isinstance(annotation, type) or _is_instance(value, annotation)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(conforms(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(conforms, value, arguments))
    if not isinstance(value, origin) or isinstance(value, str | bytes):
        return False
    if isinstance(value, Mapping) and len(arguments) == 2:
        keys, values = arguments
        return all(conforms(k, keys) and conforms(v, values) for k, v in value.items())
    if isinstance(value, Sequence | set | frozenset) and len(arguments) == 1:
        return all(conforms(item, arguments[0]) for item in value)
    return True


def _meaning(annotation: object) -> object:
    """The type behind an alias; in newer versions of Python and numpy an alias is an object."""
    alias = typing.get_origin(annotation) or annotation
    meaning: object = getattr(alias, "__value__", annotation)
    return meaning


def describe(annotation: object, *, none: str = "nothing") -> str:
    """An annotation in words, for messages.

    >>> describe(int | tuple[int, int])
    'a whole number or a list of 2 whole numbers'
    """
    annotation = _meaning(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (None, type(None)):
        return none
    if origin in _UNIONS:
        words = dict.fromkeys(describe(option, none=none) for option in arguments)
        return " or ".join(words)
    if origin is Literal:
        return "one of " * (len(arguments) > 1) + ", ".join(map(str, arguments))
    if origin is collections.abc.Callable:
        return "a function"
    if origin is os.PathLike:
        return "a path"
    if origin is np.ndarray:
        return _WORDS["ndarray"]
    if origin is not None and issubclass(origin, Mapping):
        keys, values = (_many(describe(item)) for item in arguments)
        return f"a mapping of {keys} to {values}"
    if origin is not None and issubclass(origin, Iterable) and arguments:
        one = _many(describe(arguments[0]))
        fixed = origin is tuple and arguments[-1] is not Ellipsis
        return f"a list of {len(arguments)} {one}" if fixed else f"a list of {one}"
    name = getattr(annotation, "__name__", str(annotation))
    return _WORDS.get(name, _with_article(name))


def shown(value: object) -> str:
    """A value in few words, for messages.

    >>> shown("4"), shown(None), shown([1, 2]), shown(np.zeros((2, 3)))
    ("'4'", 'None', '[1, 2]', 'a ndarray of shape [2, 3]')
    """
    name, shape = _with_article(type(value).__name__), getattr(value, "shape", None)
    nested = isinstance(value, tuple | list | dict | set)
    if nested or value is None or isinstance(value, bool | int | float | str | bytes):
        try:
            text = " ".join(repr(value).split())
        except ValueError:  # a whole number of more digits than Python prints
            return f"{name} of many digits"
        if len(text) > _SHOWN and isinstance(value, Sized) and nested:
            return f"{name} of {len(value)}"
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{name} of shape {list(shape)}" if isinstance(shape, tuple) else name


def finite(what: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number; `what` is its name."""
    _require(what, value, "a finite number", _is_finite(value))


def positive(what: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number above 0."""
    _require(what, value, "a number above 0", _is_finite(value) and value > 0)


def not_negative(what: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number, 0 or more."""
    _require(what, value, "0 or a number above 0", _is_finite(value) and value >= 0)


def fraction(what: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is at least 0 and below 1."""
    _require(what, value, "at least 0 and below 1", _is_finite(value) and 0 <= value < 1)


def at_least(what: str, value: int, least: int, most: int | None = None) -> None:
    """Raise `ConfigError` unless `value` is a whole number from `least` to `most`."""
    bounds = f"{least} or more" if most is None else f"{least} to {most}"
    fits = conforms(value, int) and value >= least and (most is None or value <= most)
    _require(what, value, f"a whole number, {bounds}", fits)


def pair(what: str, value: tuple[float, float]) -> tuple[float, float]:
    """The value, if it is a sequence of two; `ConfigError` otherwise."""
    _require(what, value, "two numbers", isinstance(value, Sequence) and len(value) == 2)
    return value


def _require(what: str, value: object, expected: str, fits: bool) -> None:
    if not fits:
        raise wrong_value(ConfigError, what, value, expected)


def wrong_value(
    error: type[E], what: str, value: object, expected: str, *, remedy: str | None = None
) -> E:
    """The error for an option or an argument whose value is out of range or of the wrong form.

    >>> print(wrong_value(ConfigError, "batch", 0, "1 or more"))
    batch is 0
      expected: 1 or more
      found: 0
      to do: change batch
    """
    found = shown(value)
    return error(f"{what} is {found}", expected, found, remedy or f"change {what}")


_SHOWN = 80
"""The most characters of a value that a message shows."""

_WORDS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "Graph": "a Graph: a net of pu.zoo, Net.graph(), or what a transform gives",
    "Module": "an object of a torch.nn.Module",
    "Source": "a source of samples, such as data.train",
    "Tensor": "a tensor",
    "ndarray": "a numpy array",
}

_REMEDIES: Mapping[tuple[str, str], str] = {
    ("Module", "function"): "put what it computes into the forward of a torch.nn.Module",
    ("ndarray", "list"): "convert it with numpy.asarray",
    ("Graph", "Module"): "import the module: pu.from_torch(module, loss, example).net",
    ("Graph", "Net"): "freeze the net: net.graph()",
    ("Graph", "Imported"): "take a graph of what was imported: imported.net or imported.test",
    ("Graph", "Run"): "take the graph of the run: run.graph",
    ("Graph", "Builder"): "freeze the builder: builder.graph()",
    ("Source", "DataSet"): "take one part of the data set: data.train or data.test",
}
"""The remedy where one class is expected and another, or a subclass of it, is passed."""


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _is_instance(value: object, kind: type) -> bool:
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return True
    return isinstance(value, kind)


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _many(one: str) -> str:
    if " or " in one or " of " in one:
        return f"items that are {one}"
    return one.removeprefix("a ").removeprefix("an ") + "s"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    return _is_number(value) and -math.inf < value < math.inf  # also for very large whole numbers


def _misfit(what: str, key: str, value: object, annotation: object) -> ConfigError:
    expected, remedy = describe(annotation, none="None"), _remedy(key, value, annotation)
    return wrong_value(ConfigError, what, value, expected, remedy=remedy)


def _remedy(key: str, value: object, annotation: object) -> str:
    options = [_meaning(option) for option in (annotation, *typing.get_args(annotation))]
    if isinstance(value, type) and any(
        isinstance(option, type) and issubclass(value, option) for option in options
    ):
        return f"make an object of the class: {value.__name__}(...)"
    wanted = [getattr(option, "__name__", "") for option in options]
    for kind in type(value).__mro__:
        for name in wanted:
            if (name, kind.__name__) in _REMEDIES:
                return _REMEDIES[name, kind.__name__]
    return f"change {key}"


def _misnamed(
    form: _Form, args: Sequence[object], kwargs: Mapping[str, object], error: TypeError
) -> ConfigError:
    """The error for arguments that the function does not have, or that are missing."""
    label, signature = form.label, form.signature
    names = [name for name in signature.parameters if name != "self"]
    unknown = [name for name in kwargs if name not in names]
    given = f"{len(args)} by position" + "".join(f", {name}" for name in kwargs)
    if not unknown:
        what, expected = f"{label} cannot be called so: {error}", f"{label}{signature}"
        return ConfigError(what, expected, given, "pass these arguments")
    what, expected = f"{label} has no argument {unknown[0]!r}", ", ".join(names) or "no arguments"
    remedy = nearest_name(unknown[0], names, f"leave {unknown[0]} out")
    return ConfigError(what, expected, given, remedy)
