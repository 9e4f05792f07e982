"""Gradients of the user's own: `torch.autograd.Function` and hooks of tensors, as rules of ops.

Exporting a module runs its forward alone, so a `backward` or a hook would be lost. While a module
is traced they are called at once, with a stand-in for the cotangent: an op `purine::cotangent` that
has no value yet. What they compute is then part of the program, and an op `purine::pulled` says
what it is the gradient of. The translation turns both into a `CustomGradient` (see
`purine.kinds.custom_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from operator import getitem
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import Function, FunctionCtx, _SingleLevelFunction
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointFunction

from purine.analysis.tracing import leading_to
from purine.errors import PurineError
from purine.importers.torch.lines import first_line, refusal
from purine.importers.torch.tracing import AnyFunction, Args, Named, Trace, current

__all__ = [
    "Hook",
    "HookHandle",
    "Pulled",
    "add_hook",
    "apply_function",
    "cotangent_of",
    "define_ops",
    "hook_name",
    "is_random",
    "nodes_in",
    "pulled_of",
    "rule_nodes",
    "spread_hooks",
]

Hook: TypeAlias = Callable[[Tensor], Tensor | None]
"""A function of the gradient of a tensor that may return another one."""

_HOOK = "hook "
_INTERNALS = ("torch._library", "torch._functorch", "torch._higher_order_ops")


@cache
def define_ops() -> tuple[OpOverload, OpOverload]:
    """The ops `cotangent` and `pulled`, which stand for gradient rules in exported programs."""
    define, impl, empty = torch.library.define, torch.library.impl, torch.empty_like
    pulled_inputs = "Tensor[] results, Tensor[] sources, Tensor[] gradients, str name"
    define("purine::cotangent", "(Tensor result, int index) -> Tensor")
    define("purine::pulled", f"({pulled_inputs}) -> Tensor[]")
    impl("purine::cotangent", "default", lambda result, index: empty(result))
    impl("purine::pulled", "default", lambda results, *_: list(map(empty, results)))
    torch.library.register_autograd(
        "purine::pulled",
        lambda ctx, *gradients: (None, None, None, None),
        setup_context=lambda ctx, inputs, output: None,
    )
    cotangent, pulled = torch.ops.purine.cotangent.default, torch.ops.purine.pulled.default
    torch.fx.node.has_side_effect(pulled)  # a hook has no result that anybody reads
    return cotangent, pulled


class _Context(FunctionCtx):
    """What `forward` and `backward` of a custom function share, without an autograd node."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.to_save: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self.to_save


def apply_function(original: classmethod[Function, ..., object]) -> object:
    """`Function.apply` that adds the rule of a custom function to the program that is traced."""

    def apply(cls: type[Function], /, *args: object, **kwargs: object) -> object:
        trace = current()
        if trace is not None and not trace.in_rule:
            if cls is CheckpointFunction:
                run, _, *given = args  # its gradient is that of what it runs
                assert callable(run)
                return run(*given)
            needs = tuple(isinstance(value, Tensor) and value.requires_grad for value in args)
            if any(needs) and torch.is_grad_enabled() and not cls.__module__.startswith(_INTERNALS):
                return _apply_with_rule(trace, cls, needs, args, kwargs)
        return original.__get__(None, cls)(*args, **kwargs)

    return classmethod(apply)


def _apply_with_rule(
    trace: Trace, cls: type[Function], needs: tuple[bool, ...], args: Args, kwargs: Named
) -> object:
    """The results of a custom function, with the gradients that its `backward` computes."""
    context = _Context(needs)
    with torch.no_grad():
        returned = _forward(cls, context, args, kwargs)
    if context.dirty_tensors:
        changes = f"function {cls.__name__!r} changes its input in place"
        remedy = "compute a new tensor in forward, and return that"
        raise refusal(changes, "a forward that leaves its inputs alone", "ctx.mark_dirty", remedy)
    results = list(returned) if isinstance(returned, tuple) else [returned]
    exempt = {id(value) for value in context.non_differentiable}
    pulled = {
        index: value
        for index, value in enumerate(results)
        if isinstance(value, Tensor)
        and (value.is_floating_point() or value.is_complex())
        and id(value) not in exempt
    }
    numbers = count()
    cotangents = [
        define_ops()[0](value, next(numbers))
        if index in pulled
        else (torch.zeros_like(value) if isinstance(value, Tensor) else None)
        for index, value in enumerate(results)
    ]
    rule: AnyFunction = cls.vjp if cls.vjp is not Function.vjp else cls.backward
    boxed = getattr(cls, "boxed_grads_call", False)
    passed = [cotangents] if boxed else cotangents
    what = f"the backward of function {cls.__name__!r}"
    given = _call_rule(trace, what, lambda: rule(context, *passed))
    each = given if isinstance(given, tuple | list) else (given,)
    gradients = {index: value for index, value in enumerate(each[: len(args)]) if needs[index]}
    values = _pull(list(pulled.values()), args, gradients, cls.__name__)
    for index, value in zip(pulled, values, strict=True):
        results[index] = value
    return tuple(results) if isinstance(returned, tuple) else results[0]


def _forward(cls: type[Function], context: _Context, args: Args, kwargs: Named) -> object:
    forward: AnyFunction = cls.forward
    setup: AnyFunction = cls.setup_context
    if setup == _SingleLevelFunction.setup_context:
        return forward(context, *args, **kwargs)
    returned = forward(*args, **kwargs)
    setup(context, args, returned)
    return returned


def _pull(
    results: Sequence[Tensor], args: Args, gradients: Mapping[int, object], name: str
) -> list[Tensor]:
    """The results with the gradients that a rule computes; detached where it computes none."""
    sources, fitted = [], []
    for index, gradient in gradients.items():
        source = args[index]
        if gradient is not None and isinstance(source, Tensor):
            sources.append(source)
            fitted.append(_fitted(gradient, source, name))
    if not sources:
        return [result.detach() for result in results]
    pulled: list[Tensor] = define_ops()[1](list(results), sources, fitted, name)
    return pulled


def _fitted(gradient: object, source: Tensor, name: str) -> Tensor:
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
    what = f"{name!r} gives a gradient of another form than its input"
    remedy = "return a gradient of the input's shape"
    raise refusal(what, f"size {list(source.shape)}", form, remedy)


def hook_name(hook: object) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def add_hook(tensor: Tensor, hook: Hook) -> None:
    """Let a hook be the rule of all gradients that a tensor gets."""
    trace = current()
    assert trace is not None
    name, result = hook_name(hook), tensor.detach()
    cotangent = define_ops()[0](result, 0)
    gradient = _call_rule(trace, f"hook {name!r}", lambda: hook(cotangent))
    if gradient is None:
        expected = "a hook that returns the gradient to go on with"
        actual = "None: it only looks at gradients, which an imported net would not show it"
        remedy = "remove the hook; a step has the gradient of blob x as blob grad/x"
        raise refusal(f"hook {name!r} of a tensor returns nothing", expected, actual, remedy)
    define_ops()[1]([result], [tensor], [_fitted(gradient, tensor, name)], _HOOK + name)


class HookHandle:
    """What `register_hook` returns while a module is traced: the hook is in the program already."""

    def remove(self) -> None:
        what = "the forward removes a hook that it registered"
        remedy = "leave out both, the hook and its removal"
        raise refusal(what, "hooks that stay until the backward", "handle.remove()", remedy)


def _call_rule(trace: Trace, what: str, call: Callable[[], object]) -> object:
    """What a backward or a hook returns; where it cannot be traced, an error that names it.

    Functions that it applies itself need no rules: nobody takes the gradient of a gradient.
    """
    try:
        with trace.rule():
            return call()
    except PurineError:
        raise
    except Exception as error:
        expected = "a gradient that is computed by operations on tensors, whatever their values"
        remedy = "write it with tensors alone: torch.where and torch.clamp in place of branches"
        raise refusal(f"{what} cannot be traced", expected, first_line(error), remedy) from error


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a `pulled` node says: `gradients` are those of `sources`, by the rule of `results`."""

    results: Sequence[Node]
    sources: Sequence[Node]
    gradients: Sequence[Node]
    name: str


def pulled_of(node: Node) -> Pulled | None:
    """What a node says of gradients, where it is one of ours."""
    if node.target is not define_ops()[1]:
        return None
    results, sources, gradients, name = node.args
    return Pulled(nodes_in(results), nodes_in(sources), nodes_in(gradients), str(name))


def cotangent_of(node: Node) -> int | None:
    """The index of the result whose cotangent a node stands for; None for other nodes."""
    if node.target is not define_ops()[0]:
        return None
    index = node.args[1]
    assert isinstance(index, int)
    return index


def rule_nodes(nodes: Sequence[Node]) -> dict[Node, None]:
    """The nodes that depend on a cotangent, in order: they belong to rules, not to the net."""
    late: dict[Node, None] = {}
    for node in nodes:
        depends = any(each in late for each in node.all_input_nodes)
        if cotangent_of(node) is not None or (depends and pulled_of(node) is None):
            late[node] = None
    return late


def spread_hooks(graph: Graph) -> None:
    """Let all readers of a tensor that has a hook read the result of the hook's `pulled` node.

    The hook that was registered first sees a gradient first, so the last one comes next to the
    tensor.
    """
    rules = [node for node in graph.nodes if pulled_of(node) is not None]
    hooks = [node for node in rules if str(node.args[3]).startswith(_HOOK)]
    for node in reversed(hooks):
        _spread(graph, node)
    for node in hooks:
        for user in list(node.users):
            graph.erase_node(user)
        graph.erase_node(node)
    if hooks:
        graph.eliminate_dead_code()


def _spread(graph: Graph, hook: Node) -> None:
    """Put a copy of a hook, and of what it computes from its tensor, before all other readers."""
    pulled = pulled_of(hook)
    assert pulled is not None
    (tensor,) = pulled.sources
    order = {node: index for index, node in enumerate(graph.nodes)}
    before = leading_to([hook])
    chain: dict[Node, None] = {}
    for node in graph.nodes:
        if node in before and any(each is tensor or each in chain for each in node.all_input_nodes):
            chain[node] = None
    needed = {each for node in chain for each in node.all_input_nodes if each not in chain}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    anchor = max((tensor, *needed, *placeholders), key=order.__getitem__)
    readers = [user for user in tensor.users if user not in chain]
    if any(order[user] < order[anchor] for user in readers) or any(map(is_random, chain)):
        what = f"{pulled.name!r} of a tensor reads what is computed after the tensor was used"
        expected = "hooks that read what is known when their tensor is"
        remedy = "register the hook at once when the tensor is computed"
        raise refusal(what, expected, "a hook that is registered too late", remedy, node=hook)
    copies: dict[Node, Node] = {}
    for node in chain:
        with graph.inserting_after(anchor):
            anchor = copies[node] = graph.node_copy(node, lambda each: copies.get(each, each))
    with graph.inserting_after(anchor):
        result = graph.call_function(getitem, (copies[hook], 0))
    result.meta = {**tensor.meta}
    own = set(copies.values())
    tensor.replace_all_uses_with(result, delete_user_cb=lambda user: user not in own)


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def nodes_in(argument: object) -> list[Node]:
    """The nodes in an argument of a node that is a list of tensors."""
    assert isinstance(argument, tuple | list)
    return [item for item in argument if isinstance(item, Node)]
