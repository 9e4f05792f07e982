"""Packed sequences without packing: recurrent layers over padded steps, under a mask.

How a batch is packed depends on the values of its lengths. What comes out does not need it: where a
sequence has ended its state stays as it is, and in the other direction it has not begun. While a
module is traced, `pack_padded_sequence` gives `Sequences`, which recurrent layers and
`pad_packed_sequence` take; anything else that would be done with packed data is refused.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

from purine.errors import GraphError
from purine.importers.torch.places import code_at, users_place
from purine.importers.torch.replaced import replaced

__all__ = ["masked_sequences"]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Steps [T, N, F] of sequences with their lengths [N], in the order that packing has them.

    `longest` is the greatest length where it is known without values.
    """

    steps: Tensor
    lengths: Tensor
    longest: int | None
    sorted_indices: Tensor | None = None

    @property
    def unsorted_indices(self) -> Tensor | None:
        return None if self.sorted_indices is None else torch.argsort(self.sorted_indices)

    @property
    def data(self) -> Sequences:
        return self

    @property
    def batch_sizes(self) -> Sequences:
        return self

    def size(self, dim: int) -> int:
        """The number of steps, for `pad_packed_sequence`; 0 where it depends on values."""
        return self.longest or 0

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse("what is packed is used as a tensor", "use what pad_packed_sequence gives")

    def __iter__(self) -> NoReturn:
        _refuse("what is packed is taken apart", "use what pad_packed_sequence gives")


@contextmanager
def masked_sequences(longest: Callable[[Tensor], int | None]) -> Iterator[None]:
    """Let sequences be masked in place of packed; `longest` tells the maximum of known lengths."""

    def pack(steps: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Sequences, None]:
        ordered = steps.transpose(0, 1) if batch_first else steps
        return Sequences(ordered, lengths.to(steps.device), longest(lengths)), None

    def init(packed: Sequences, _: None, order: Tensor | None, __: None) -> Sequences:
        return replace(packed, sorted_indices=order)

    with replaced(
        (
            (torch._VF, "_pack_padded_sequence", pack),
            (torch._VF, "_pad_packed_sequence", _pad),
            (rnn, "_packed_sequence_init", init),
            *((layer, "forward", _forward(layer.forward)) for layer in (nn.RNN, nn.GRU, nn.LSTM)),
        )
    ):
        yield


def _pad(
    packed: Sequences, _: Sequences, batch_first: bool, value: float, length: int
) -> tuple[Tensor, Tensor]:
    if length == 0:
        _refuse(
            "the number of steps of pad_packed_sequence depends on the values of lengths",
            "pass total_length: pad_packed_sequence(y, batch_first=True, total_length=x.size(1))",
        )
    steps = packed.steps[:length]
    if length > steps.shape[0]:
        steps = F.pad(steps, (0, 0, 0, 0, 0, length - steps.shape[0]))
    steps = torch.where(_there(steps, packed.lengths), steps, value)
    return steps.transpose(0, 1) if batch_first else steps, packed.lengths


def _there(steps: Tensor, lengths: Tensor) -> Tensor:
    """Whether a step of a sequence is one of its own: [T, N, 1]."""
    place = torch.arange(steps.shape[0], device=steps.device).view(-1, 1, 1)
    return place < lengths.view(1, -1, 1)


def _forward(whole: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, Sequences):
            return whole(self, input, hx)
        self._update_flat_weights()
        steps, there = input.steps, _there(input.steps, input.lengths)
        directions = 2 if self.bidirectional else 1
        states = _first_states(self, steps, hx, input.sorted_indices)
        finals = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                steps = F.dropout(steps, self.dropout, self.training)
            results = []
            for direction in range(directions):
                number = layer * directions + direction
                start = tuple(state[number] for state in states)
                weights = self.all_weights[number]
                y, last = _run(self, steps, there, start, weights, backward=direction == 1)
                results.append(y)
                finals.append(last)
            steps = torch.cat(results, -1)
        hidden = tuple(torch.stack(state) for state in zip(*finals, strict=True))
        hidden = hidden if isinstance(self, nn.LSTM) else hidden[0]
        return replace(input, steps=steps), self.permute_hidden(hidden, input.unsorted_indices)

    return forward


def _first_states(layer: Any, steps: Tensor, hx: Any, order: Tensor | None) -> tuple[Tensor, ...]:
    if hx is not None:
        hidden = layer.permute_hidden(hx, order)
        return hidden if isinstance(hidden, tuple) else (hidden,)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = [layer.proj_size or layer.hidden_size]
    if isinstance(layer, nn.LSTM):
        sizes.append(layer.hidden_size)
    return tuple(steps.new_zeros(count, steps.shape[1], size) for size in sizes)


def _run(
    layer: Any,
    steps: Tensor,
    there: Tensor,
    state: tuple[Tensor, ...],
    weights: list[Tensor],
    *,
    backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One direction of one layer: its outputs and its last state."""
    w_ih, w_hh, *more = weights
    b_ih, b_hh = more[:2] if layer.bias else (None, None)
    project = more[-1] if layer.proj_size else None
    given = F.linear(steps, w_ih, b_ih)
    outputs: list[Tensor] = []
    places = range(steps.shape[0])
    for place in reversed(places) if backward else places:
        following = _step(layer.mode, given[place], F.linear(state[0], w_hh, b_hh), state)
        if project is not None:
            following = F.linear(following[0], project), *following[1:]
        state = tuple(
            torch.where(there[place], new, old) for new, old in zip(following, state, strict=True)
        )
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


def _step(
    mode: str, given: Tensor, carried: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The next state from what the input and the state are multiplied to."""
    if mode == "LSTM":
        enter, forget, value, leave = (given + carried).chunk(4, -1)
        cell = forget.sigmoid() * state[1] + enter.sigmoid() * value.tanh()
        return leave.sigmoid() * cell.tanh(), cell
    if mode == "GRU":
        reset, update, value = given.chunk(3, -1)
        reset_carried, update_carried, carried_value = carried.chunk(3, -1)
        kept = (update + update_carried).sigmoid()
        new = (value + (reset + reset_carried).sigmoid() * carried_value).tanh()
        return ((1 - kept) * new + kept * state[0],)
    return ((given + carried).tanh() if mode == "RNN_TANH" else (given + carried).relu(),)


def _refuse(what: str, remedy: str) -> NoReturn:
    place = users_place(traceback.extract_stack())
    raise GraphError(
        what,
        where=place,
        expected="packed sequences that recurrent layers and pad_packed_sequence take",
        found=code_at(place) or "another use",
        remedy=remedy,
    )
