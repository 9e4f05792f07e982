"""Functions of tensors compiled by TorchInductor: the one module that knows how to ask it.

A function is recorded on fake tensors in the form and layout of its first arguments, then compiled
for exactly these. What it writes into its arguments is written there, without a copy; on a GPU it
keeps copies of them in low precision from call to call (`_kept.py`). What was compiled stays on
disk, by the contents of the recorded function and the versions of everything; the folder is
`PURINE_CACHE`, or `purine` among the user's caches.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from purine.compile.rewrites.all import rewritten
from purine.compile.rewrites.kept import Kept, keep_casts
from purine.machine.settings import use_compile_cache

__all__ = ["CompiledFunction", "compile_function", "scalars_first"]

_OPTIONS = {
    "deterministic": True,  # how sums are cut up is not a matter of which was quicker this time
    "triton.cudagraphs": False,  # the run captures
    "triton.mix_order_reduction": False,  # ends with sums outside of its kernels
}

_CAREFUL = {"loop_ordering_after_fusion": False}
"""What torch 2.11 fails over, where updates and norms read the same gradients."""

_one_at_a_time = threading.Lock()
"""Recording and compiling change settings of torch that all threads share."""

_log = logging.getLogger("purine")


class CompiledFunction:
    """A compiled function, with what it keeps from call to call.

    Whoever captures a call and replays it calls `refresh` before each replay.
    """

    def __init__(
        self,
        first: Callable[..., Sequence[Tensor]],
        rest: Callable[..., Sequence[Tensor]],
        kept: Kept,
    ) -> None:
        self._first, self._rest, self._kept = first, rest, kept

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Call the function; it returns a sequence."""
        kept = self._kept
        kept.refresh(tensors)
        kept.forget()
        found = self._rest(*tensors, *self._first(*tensors), *kept.copies)
        kept.note(tensors)
        return found

    def refresh(self, tensors: Sequence[Tensor]) -> None:
        """Bring what is kept up to date with arguments that others may have written."""
        self._kept.refresh(tensors)


def compile_function(
    function: Callable[..., Any], arguments: Sequence[Tensor], *, keep: bool | None = None
) -> CompiledFunction:
    """A compiled form of a function, for arguments of the form of these.

    With `keep` it keeps copies in low precision of what it writes over; by default on a GPU.
    """
    gpu = any(value.is_cuda for value in arguments)
    with _one_at_a_time, torch.no_grad():
        use_compile_cache()
        recorded = make_fx(function, tracing_mode="fake")(*arguments)
        scalars = scalars_first(recorded)
        rewritten(recorded, gpu=gpu)
        kept = Kept(keep_casts(recorded) if (gpu if keep is None else keep) else [], arguments)
        first = _compiled(scalars, arguments) if _returns(scalars) else scalars
        rest = _compiled(recorded, [*arguments, *first(*arguments), *kept.copies])
    return CompiledFunction(first, rest, kept)


def _compiled(module: GraphModule, arguments: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    settings = {**_OPTIONS, **_for_norms(module)}
    _introduce(module)
    try:
        return _compiled_or_found(module, arguments, settings)
    except Exception:
        _log.debug("the compiler failed and is tried once more, with care", exc_info=True)
        return _compiled_or_found(module, arguments, settings | _CAREFUL)


def _compiled_or_found(
    module: GraphModule, arguments: Sequence[Tensor], settings: Mapping[str, object]
) -> Callable[..., Sequence[Tensor]]:
    """Compile a function, unless it has been: the compiler keeps whole functions of fixed shapes.

    It does so only where shapes have a place to be noted in, though fixed ones need none.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    place = TracingContext(FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True))
    with tracing(place), torch.compiler.config.patch(cache_key_tag=_our_ops()):
        found: Callable[..., Sequence[Tensor]] = compile_fx(
            module, list(arguments), config_patches=dict(settings), ignore_shape_env=True
        )
    return found


@cache
def _our_ops() -> str:
    """What tells one version of our own ops from another: the compiler knows their names alone."""
    package = Path(__file__).parents[1]
    folders = ("compile", "kernels", "kinds", "registry")
    files = sorted(file for name in folders for file in (package / name).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _introduce(module: GraphModule) -> None:
    """Let the compiler know of our own ops.

    When torch 2.11 meets an op that it does not know it first writes down how its arguments are
    computed, again and again what several of them need: minutes for an op that reads many.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
    from torch._library.utils import get_layout_constraint_tag

    for op in {node.target for node in module.graph.nodes}:
        ours = isinstance(op, torch._ops.OpOverload) and op.namespace == "purine"
        if ours and op not in lowerings:
            tag = get_layout_constraint_tag(op, with_default=True)
            make_fallback(op, layout_constraint=tag_to_layout_constraint(tag))


def _for_norms(module: GraphModule) -> dict[str, object]:
    """What a step with norms on a GPU is compiled with.

    Batch norms of what is side by side, as in the branches of an inception, are put together; layer
    norms of a transformer become slower by it. And what a batch norm's gradient reads is computed
    where it is read, up to a number of sources: with more than these the sums of residual nets are
    read again and again. Where our own kernel pulls back through layer norms every sum of a
    residual net is made once, for this kernel wants it too.
    """
    aten = torch.ops.aten
    calls = {node.target: node for node in module.graph.nodes}
    if any(str(target) == "purine.layer_norm_gradient.default" for target in calls):
        return {"realize_reads_threshold": 1}
    norm = calls.get(aten.native_batch_norm_backward.default)
    if norm is None or not norm.meta["val"][0].is_cuda:
        return {}
    return {
        "combo_kernels": True,
        "realize_reads_threshold": 6 if aten.threshold_backward.default in calls else 7,
        "realize_opcount_threshold": 100,
    }


def _returns(module: GraphModule) -> bool:
    return bool(module.graph.output_node().args[0])


def scalars_first(module: GraphModule) -> GraphModule:
    """Take what is computed from scalars alone out of a recorded function, into one of its own.

    Powers of the iteration and rates belong to no element. Left in, they would be computed anew for
    every one: a kernel takes in whatever cheap thing it reads. Behind its own arguments the
    function then takes what the new one returns.
    """
    early: dict[Node, Node] = {}
    known: dict[tuple[object, ...], Node] = {}
    first = Graph()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            copied = first.placeholder(node.name)
            if _is_scalar(node):
                early[node] = copied
        elif _is_early(node, early):
            args, kwargs = map_arg((node.args, node.kwargs), early.__getitem__)
            key = (node.target, repr(args), repr(kwargs))
            if key not in known:
                known[key] = first.call_function(node.target, args, kwargs)
            early[node] = known[key]
    taken: dict[Node, Node] = {}
    last = [node for node in module.graph.nodes if node.op == "placeholder"][-1]
    for node, copied in early.items():
        if node.op == "placeholder" or not any(user not in early for user in node.users):
            continue
        if copied not in taken:
            with module.graph.inserting_after(last):
                last = taken[copied] = module.graph.placeholder(f"scalar_{len(taken)}")
            last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(taken[copied], delete_user_cb=lambda user: user not in early)
    for node in reversed([node for node in early if node.op != "placeholder"]):
        module.graph.erase_node(node)
    first.output(tuple(taken))
    module.recompile()
    return GraphModule(module, first)


def _is_scalar(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 0


def _is_early(node: Node, early: Mapping[Node, Node]) -> bool:
    """Whether a call makes a scalar of scalars and does nothing else."""
    return (
        node.op == "call_function"
        and _is_scalar(node)
        and bool(node.all_input_nodes)
        and all(source in early for source in node.all_input_nodes)
        and isinstance(node.target, torch._ops.OpOverload)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )
