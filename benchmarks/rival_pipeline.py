"""Pipelines in plain PyTorch (`torch.distributed.pipelining`): what ours are measured against.

Every rank is a process with its own core, one stage of the net, or two where the schedule is
interleaved, and fused SGD for their parameters. Stages begin where children of an `nn.Sequential`
do, as near to Purine's cut as these are. Images go from stage to stage channels last, as they lie.

PyTorch has no parameters that several stages share, so the head of GPT-2 has a weight of its own
there: 39 million parameters more to update, and no gradients of the table to send.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from rivals import RIVALS, Block, loss_of
from torch import Tensor, nn
from torch.distributed import pipelining

__all__ = ["Plan", "rival_steps"]


class Embedding(nn.Module):
    """Of tokens and of their places."""

    def __init__(self, context: int, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.drop(self.tokens(tokens) + self.places.weight)


def gpt2(context: int, vocabulary: int, width: int = 768, layers: int = 12) -> nn.Sequential:
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
    blocks = (Block(width, width // 64, 0.1) for _ in range(layers))
    return nn.Sequential(Embedding(context, vocabulary, width), *blocks, head)


NETS: Mapping[str, Callable[[int, int], Any]] = {
    "googlenet": RIVALS["googlenet"],
    "resnet50": RIVALS["resnet50"],
    "gpt2": gpt2,
}


@dataclass(frozen=True)
class Plan:
    """A rank's part in a pipeline: `batch` samples in each of `micro` micro-batches."""

    net: str
    schedule: str
    cut: Sequence[int]
    rank: int
    ranks: int
    port: int
    micro: int
    batch: int


class _Stage(nn.Module):
    """Some children of a net; images come in and go out as N, H, W, C."""

    def __init__(self, body: nn.Sequential, *, first: bool) -> None:
        super().__init__()
        self.body, self.first = body, first

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4 and not self.first:
            x = x.permute(0, 3, 1, 2)
        x = self.body(x)
        if x.dim() != 4:
            return x
        x = x.permute(0, 2, 3, 1).contiguous()
        # The zero bubble schedule detaches what a stage gives in place, which a view refuses.
        return torch.ops.aten._unsafe_view(x, x.shape)


def rival_steps(
    plan: Plan,
    inputs: Tensor,
    labels: Tensor,
    sizes: tuple[int, int],
    *,
    lr: float,
    momentum: float,
    decay: float,
) -> Callable[[int], float]:
    """What makes so many steps, and gives the last loss where this rank has the last stage."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = f"tcp://127.0.0.1:{plan.port}"
    dist.init_process_group("gloo", init_method=address, rank=plan.rank, world_size=plan.ranks)
    stages = _stages(plan, sizes)
    schedule = _schedule(plan, stages)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True
    )
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    total = plan.micro * plan.batch
    first, last = stages[0].is_first, stages[-1].is_last
    position = 0
    settings: dict[str, Any] = {}
    if "return_outputs" in inspect.signature(schedule.step).parameters:
        settings["return_outputs"] = False

    def steps(count: int) -> float:
        nonlocal position
        value = 0.0
        for _ in range(count):
            rows = slice(position, position + total)
            position = (position + total) % (len(inputs) - total + 1)
            optimizer.zero_grad(set_to_none=True)
            losses: list[Tensor] = []
            given = (inputs[rows],) if first else ()
            asked = {"target": labels[rows], "losses": losses} if last else {}
            schedule.step(*given, **asked, **settings)
            optimizer.step()
            if last:
                value = sum(loss.item() for loss in losses) / plan.micro
                assert value == value
        return value

    return steps


def _stages(plan: Plan, sizes: tuple[int, int]) -> list[Any]:
    """This rank's stages; only their own parameters ever have memory."""
    with torch.device("meta"):
        children = list(NETS[plan.net](*sizes))
    ends = list(pairwise([0, *plan.cut, len(children)]))
    stages = []
    for index in range(plan.rank, len(ends), plan.ranks):
        begin, end = ends[index]
        body = nn.Sequential(*children[begin:end]).to_empty(device="cpu")
        torch.manual_seed(index)
        for module in body.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        body = body.to(memory_format=torch.channels_last)
        part = _Stage(body, first=index == 0)
        stages.append(pipelining.PipelineStage(part, index, len(ends), torch.device("cpu")))
    return stages


def _schedule(plan: Plan, stages: list[Any]) -> Any:
    single = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    several = {
        "interleaved": pipelining.ScheduleInterleaved1F1B,
        "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    }
    if plan.schedule in single:
        return single[plan.schedule](stages[0], plan.micro, loss_fn=loss_of)
    return several[plan.schedule](stages, plan.micro, loss_fn=loss_of)
