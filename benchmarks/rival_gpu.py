"""Training steps of plain PyTorch on a GPU, eager and compiled, as its users tune them.

All of them: autocast, channels-last images and filters, batches that lie on the device already, one
fused optimizer, gradients set to none, and losses that are looked at some steps later, so that the
device never waits for the host. Compiled: model and loss are one function, and the optimizer is
compiled as well where that is found to be quicker.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from rivals import RIVALS, loss_of
from step import DECAY, LR, MOMENTUM, Setting, samples
from torch import nn

__all__ = ["Lagged", "Steps", "synchronise", "torch_steps"]

Steps = Callable[[int], None]


def torch_steps(
    options: argparse.Namespace, setting: Setting, rival: dict[str, Any], mode: str
) -> tuple[Steps, float, str]:
    """Steps that are warm, the seconds until they were, and what there is to say about them.

    `mode` is `eager` or a mode of `torch.compile`.
    """
    begin = time.perf_counter()
    parts = _parts(options, setting, rival, mode)
    steps = _steps(options, *parts, _optimizer(options, parts[0], compiled=False).step)
    _warm(options, steps)
    took = time.perf_counter() - begin
    if mode == "eager" or options.optimizer == "fused":
        return steps, took, ""
    begin = time.perf_counter()
    try:
        # What tunes products of matrices has nothing to do in an optimizer but takes its time.
        tuned = "default" if mode == "default" else "reduce-overhead"
        update = torch.compile(_optimizer(options, parts[0], compiled=True).step, mode=tuned)
        other = _steps(options, *parts, update)
        _warm(options, other)
        more = time.perf_counter() - begin
        quicker = options.optimizer == "compiled" or _time(options, other) < _time(options, steps)
    except Exception as error:
        note = f"optimizer not compiled: {type(error).__name__}: {str(error).strip()[:120]}"
        del steps, parts
        torch.compiler.reset()
        begin = time.perf_counter()
        parts = _parts(options, setting, rival, mode)
        steps = _steps(options, *parts, _optimizer(options, parts[0], compiled=False).step)
        _warm(options, steps)
        return steps, time.perf_counter() - begin, note
    if quicker:
        return other, took + more, "optimizer compiled"
    return steps, took, "optimizer fused, which is quicker than compiled"


def _parts(
    options: argparse.Namespace, setting: Setting, rival: dict[str, Any], mode: str
) -> tuple[nn.Module, Callable[..., Any], list[tuple[Any, Any]]]:
    """The model, the function that makes the loss of a batch, and the batches."""
    device = options.device
    torch.manual_seed(0)
    model = RIVALS[options.net](setting.sample[0], setting.classes, **rival)
    _without_dropout(model)
    model = model.to(device, memory_format=torch.channels_last)
    inputs, labels = (part.to(device) for part in samples(setting))
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    ring = list(zip(inputs.split(options.batch), labels.split(options.batch), strict=True))
    low = options.precision == "bf16"

    def forward(x: Any, label: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=low):
            return loss_of(model(x), label)

    if mode == "eager":
        return model, forward, ring
    return model, torch.compile(forward, mode=mode, fullgraph=True, dynamic=False), ring


def _without_dropout(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Dropout):
            setattr(module, name, nn.Identity())
        else:
            _without_dropout(child)


def _optimizer(
    options: argparse.Namespace, model: nn.Module, *, compiled: bool
) -> torch.optim.Optimizer:
    """The fused one, or the one of many small operations that a compiler can fuse."""
    form: dict[str, Any] = {"foreach": True} if compiled else {"fused": True}
    if options.net == "gpt2":
        if compiled and options.device == "cuda":
            form["capturable"] = True
        return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, **form)
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, **form)


def _steps(
    options: argparse.Namespace,
    model: nn.Module,
    forward: Callable[..., Any],
    ring: list[tuple[Any, Any]],
    update: Callable[[], object],
) -> Steps:
    position = 0
    losses = Lagged(options.device)
    parameters = list(model.parameters())

    def steps(count: int) -> None:
        nonlocal position
        for _ in range(count):
            inputs, labels = ring[position]
            position = (position + 1) % len(ring)
            if options.worker != "eager":
                torch.compiler.cudagraph_mark_step_begin()
            for parameter in parameters:
                parameter.grad = None
            loss = forward(inputs, labels)
            loss.backward()
            update()
            losses.put(loss)
            del loss
        losses.rest()

    return steps


class Lagged:
    """Losses that are copied at once and looked at some steps later.

    The copy lies in the stream right behind its step: what a captured graph overwrites afterwards
    does not matter to it, and waiting for it waits for no later step.
    """

    def __init__(self, device: str, lag: int = 4) -> None:
        self.cuda = device == "cuda"
        self.slots = [torch.zeros((), pin_memory=self.cuda) for _ in range(lag)]
        self.events = [torch.cuda.Event() if self.cuda else None for _ in range(lag)]
        self.made = self.seen = 0

    def put(self, loss: Any) -> None:
        if self.made - self.seen == len(self.slots):
            self._look()
        place = self.made % len(self.slots)
        self.slots[place].copy_(loss.detach(), non_blocking=True)
        event = self.events[place]
        if event is not None:
            event.record()
        self.made += 1

    def rest(self) -> None:
        """Look at all that are left."""
        while self.seen < self.made:
            self._look()

    def _look(self) -> None:
        place = self.seen % len(self.slots)
        event = self.events[place]
        if event is not None:
            event.synchronize()
        value = float(self.slots[place])
        if value != value:
            raise FloatingPointError(f"the loss of step {self.seen} is not a number")
        self.seen += 1


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _warm(options: argparse.Namespace, steps: Steps) -> None:
    steps(options.warm)
    synchronise(options.device)


def _time(options: argparse.Namespace, steps: Steps) -> float:
    """Seconds per step, the least of a few short turns."""
    _warm(options, steps)
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        steps(5)
        synchronise(options.device)
        found.append((time.perf_counter() - begin) / 5)
    return min(found)
