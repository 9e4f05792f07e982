"""Gradients of the user's own: `torch.autograd.Function` and hooks of tensors, as rules of ops.

Exporting a module runs its forward alone, so a `backward` or a hook would be forgotten. While a
module is traced they are called at once, with a stand-in for the cotangent: an op that has no value
yet. What they compute is then part of the program, and an op `purine::pulled` says what it is the
gradient of. The translation makes of both a `CustomGradient` (see `purine.kinds.custom_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx, _SingleLevelFunction
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointFunction

from purine.errors import GraphError, PurineError
from purine.importers.torch.patched import is_tracing, patched, source_of, users_line

__all__ = [
    "Pulled",
    "add_hook",
    "cotangent_of",
    "following_rules",
    "is_random",
    "leading_to",
    "pulled_of",
    "rule_nodes",
    "spread_hooks",
]

_HOOK = "hook "
_hook = Tensor.register_hook
_INTERNALS = ("torch._library", "torch._functorch", "torch._higher_order_ops")


@contextmanager
def following_rules() -> Iterator[None]:
    """Let custom functions and hooks of tensors leave their rules in what is traced."""
    _ops()
    with ExitStack() as stack:
        stack.enter_context(patched(_SingleLevelFunction, "apply", classmethod(_apply)))
        stack.enter_context(patched(Tensor, "register_hook", _register_hook))
        yield


@cache
def _ops() -> tuple[Any, Any, torch.library.Library]:
    """The two ops that programs have of us; torch keeps them as long as the library lives."""
    library = torch.library.Library("purine", "FRAGMENT")
    library.define("cotangent(Tensor result, int place) -> Tensor")
    library.define(
        "pulled(Tensor[] results, Tensor[] sources, Tensor[] gradients, str name) -> Tensor[]"
    )
    explicit = "CompositeExplicitAutograd"
    library.impl("cotangent", lambda result, place: torch.empty_like(result), explicit)
    library.impl("pulled", lambda results, *_: [torch.empty_like(r) for r in results], explicit)
    torch.library.register_autograd(
        "purine::pulled",
        lambda ctx, *gradients: (None, None, None, None),
        setup_context=lambda ctx, inputs, output: None,
        lib=library,
    )
    cotangent, pulled = torch.ops.purine.cotangent.default, torch.ops.purine.pulled.default
    torch.fx.node.has_side_effect(pulled)  # a hook has no result that anybody reads
    return cotangent, pulled, library


class _Context(FunctionCtx):  # type: ignore[misc]
    """What `forward` and `backward` of a custom function share, without an autograd node."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self.to_save


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Function.apply` of a custom function while it is traced."""
    if not is_tracing():
        return _apply_plainly(cls, *args, **kwargs)
    needs = tuple(isinstance(value, Tensor) and value.requires_grad for value in args)
    if cls is CheckpointFunction:  # its gradient is that of what it runs
        run, _, *given = args
        return run(*given)
    if cls.__module__.startswith(_INTERNALS) or not any(needs) or not torch.is_grad_enabled():
        return _apply_plainly(cls, *args, **kwargs)
    context = _Context(needs)
    with torch.no_grad():
        returned = _forward(cls, context, args, kwargs)
    if context.dirty_tensors:
        raise _refusal(
            f"function {cls.__name__!r} changes its input in place",
            expected="a forward that leaves its inputs alone",
            found="ctx.mark_dirty",
            remedy="compute a new tensor in forward, and return that",
        )
    several = isinstance(returned, tuple)
    results = list(returned) if several else [returned]
    exempt = {id(value) for value in context.non_differentiable}
    pulled = [
        place
        for place, value in enumerate(results)
        if isinstance(value, Tensor) and _is_real(value) and id(value) not in exempt
    ]
    cotangents = [
        _ops()[0](value, pulled.index(place)) if place in pulled else _nothing(value)
        for place, value in enumerate(results)
    ]
    rule = cls.vjp if cls.vjp is not Function.vjp else cls.backward
    boxed = getattr(cls, "boxed_grads_call", False)
    found = _called(
        f"the backward of function {cls.__name__!r}",
        lambda: rule(context, cotangents) if boxed else rule(context, *cotangents),
    )
    each = found if isinstance(found, tuple | list) else (found,)
    gradients = {place: value for place, value in enumerate(each[: len(args)]) if needs[place]}
    values = _pull([results[place] for place in pulled], args, gradients, cls.__name__)
    for place, value in zip(pulled, values, strict=True):
        results[place] = value
    return tuple(results) if several else results[0]


def _apply_plainly(cls: Any, *args: Any, **kwargs: Any) -> Any:
    return super(_SingleLevelFunction, cls).apply(*args, **kwargs)


def _forward(cls: Any, context: _Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if cls.setup_context == _SingleLevelFunction.setup_context:
        return cls.forward(context, *args, **kwargs)
    returned = cls.forward(*args, **kwargs)
    cls.setup_context(context, tuple(args), returned)
    return returned


def _is_real(value: Tensor) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


def _nothing(value: Any) -> Any:
    """The cotangent of a result that has no gradient."""
    return torch.zeros_like(value) if isinstance(value, Tensor) else None


def _pull(
    results: Sequence[Tensor], args: Sequence[Any], gradients: Mapping[int, Any], name: str
) -> list[Tensor]:
    """The results, with the gradients that a rule gives; detached where it gives none."""
    sources, found = [], []
    for place, gradient in gradients.items():
        if gradient is not None:
            sources.append(args[place])
            found.append(_fitted(gradient, args[place], name))
    if not sources:
        return [result.detach() for result in results]
    made: list[Tensor] = _ops()[1](list(results), sources, found, name)
    return made


def _fitted(gradient: Any, source: Tensor, name: str) -> Tensor:
    """A gradient in the form of its source, as autograd makes it."""
    if not isinstance(gradient, Tensor):
        form = type(gradient).__name__
    else:
        try:
            fits = gradient.shape == source.shape
            fitted = gradient if fits else gradient.sum_to_size(source.shape)
            return fitted if fitted.dtype == source.dtype else fitted.to(source.dtype)
        except RuntimeError:
            form = f"size {list(gradient.shape)}"
    raise _refusal(
        f"{name!r} gives a gradient of another form than its input",
        expected=f"size {list(source.shape)}",
        found=form,
        remedy="return a gradient of the input's shape",
    )


def _register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
    """`Tensor.register_hook` while a module is traced."""
    if not is_tracing() or not tensor.requires_grad:  # the latter is an error of torch's
        return _hook(tensor, hook)
    add_hook(tensor, hook)
    return _Handle()


def add_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None], name: str = "") -> None:
    """Let a hook be the rule of all gradients that a tensor gets."""
    name = name or getattr(hook, "__qualname__", type(hook).__name__)
    result = tensor.detach()
    cotangent = _ops()[0](result, 0)
    gradient = _called(f"hook {name!r}", lambda: hook(cotangent))
    if gradient is None:
        raise _refusal(
            f"hook {name!r} of a tensor returns nothing",
            expected="a hook that returns the gradient to go on with",
            found="None: it only looks at gradients, which an imported net would not show it",
            remedy="remove the hook; a step has the gradient of blob x as blob grad/x",
        )
    _ops()[1]([result], [tensor], [_fitted(gradient, tensor, name)], _HOOK + name)


class _Handle:
    """What `register_hook` returns while a module is traced: the hook is in the program already."""

    def remove(self) -> None:
        raise _refusal(
            "the forward removes a hook that it registered",
            expected="hooks that stay until the backward",
            found="handle.remove()",
            remedy="leave out both, the hook and its removal",
        )


def _called(what: str, call: Callable[[], Any]) -> Any:
    """What a backward or a hook gives; where it cannot be traced, an error that names it.

    Functions that it applies itself need no rules: nobody takes the gradient of a gradient.
    """
    try:
        with patched(_SingleLevelFunction, "apply", classmethod(_apply_plainly)):
            return call()
    except PurineError:
        raise
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        raise _refusal(
            f"{what} cannot be traced",
            expected="a gradient that is computed by operations on tensors, whatever their values",
            found=f"{type(error).__name__}: {text}",
            remedy="write it with tensors alone: torch.where and torch.clamp in place of branches",
        ) from error


def _refusal(what: str, *, expected: str, found: str, remedy: str) -> GraphError:
    return GraphError(what, where=users_line(), expected=expected, found=found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Pulled:
    """A node that gives results their own gradients: of `sources`, by nodes `gradients`."""

    results: Sequence[Node]
    sources: Sequence[Node]
    gradients: Sequence[Node]
    name: str


def pulled_of(node: Node) -> Pulled | None:
    """What a node says of gradients, where it is one of ours."""
    if node.op != "call_function" or node.target is not _ops()[1]:
        return None
    results, sources, gradients, name = node.args
    return Pulled(results, sources, gradients, str(name))


def cotangent_of(node: Node) -> int | None:
    """The place of the result whose cotangent a node stands for; None for other nodes."""
    if node.op != "call_function" or node.target is not _ops()[0]:
        return None
    place = node.args[1]
    assert isinstance(place, int)
    return place


def rule_nodes(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that depend on a cotangent: they belong to rules, not to the net."""
    late: dict[Node, None] = {}
    for node in nodes:
        depends = any(each in late for each in node.all_input_nodes)
        if cotangent_of(node) is not None or (depends and pulled_of(node) is None):
            late[node] = None
    return list(late)


def spread_hooks(graph: Graph) -> None:
    """Let all readers of a tensor that has a hook read the result of the hook's `pulled` node.

    The hook that was registered first sees a gradient first, so the last one comes next to the
    tensor.
    """
    hooks = [node for node in graph.nodes if _is_hook(node)]
    for node in reversed(hooks):
        _spread(graph, node)
    for node in hooks:
        for user in list(node.users):
            graph.erase_node(user)
        graph.erase_node(node)
    if hooks:
        graph.eliminate_dead_code()


def _is_hook(node: Node) -> bool:
    pulled = pulled_of(node)
    return pulled is not None and pulled.name.startswith(_HOOK)


def _spread(graph: Graph, hook: Node) -> None:
    """Put a copy of a hook, and of what it computes from its tensor, before all other readers."""
    pulled = pulled_of(hook)
    assert pulled is not None
    (tensor,) = pulled.sources
    order = {node: place for place, node in enumerate(graph.nodes)}
    before = leading_to([hook])
    chain: dict[Node, None] = {}
    for node in graph.nodes:
        depends = any(each is tensor or each in chain for each in node.all_input_nodes)
        if depends and node in before:
            chain[node] = None
    needed = {each for node in chain for each in node.all_input_nodes if each not in chain}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    anchor = max((tensor, *needed, *placeholders), key=order.__getitem__)
    readers = [user for user in tensor.users if user not in chain]
    if any(order[user] < order[anchor] for user in readers) or any(map(is_random, chain)):
        raise GraphError(
            f"{pulled.name!r} of a tensor reads what is computed after the tensor was used",
            where=source_of(hook),
            expected="hooks that read what is known when their tensor is",
            found="a hook that is registered too late",
            remedy="register the hook at once when the tensor is computed",
        )
    copies: dict[Node, Node] = {}
    for node in chain:
        with graph.inserting_after(anchor):
            anchor = copies[node] = graph.node_copy(node, lambda each: copies.get(each, each))
    with graph.inserting_after(anchor):
        result = graph.call_function(getitem, (copies[hook], 0))
    result.meta = {**tensor.meta}
    own = set(copies.values())
    tensor.replace_all_uses_with(result, delete_user_cb=lambda user: user not in own)


def leading_to(nodes: Iterable[Node]) -> set[Node]:
    """Some nodes, and all that they depend on."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
