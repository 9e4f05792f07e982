"""Packed sequences without packing: recurrent layers over padded steps, under a mask.

How a batch is packed depends on the values of its lengths, the results of a layer do not: after
the end of a sequence its state stays as it is, and in the reverse direction it has not begun. While
a module is traced, `pack_padded_sequence` returns `Sequences`, which recurrent layers and
`pad_packed_sequence` take. Any other use of packed data is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purine.importers.torch.lines import code_at, refusal, user_line
from purine.importers.torch.tracing import AnyFunction, current

__all__ = ["PACKING", "masked_layer", "packed_sequence_init"]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Steps [T, N, F] of sequences with their lengths [N], in the order of packed sequences.

    `longest` is the greatest length, None where it depends on data.
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

    batch_sizes = data

    def size(self, dim: int) -> int:
        """The number of steps, for `pad_packed_sequence`; 0 where it depends on values."""
        return self.longest or 0

    @classmethod
    def __torch_function__(cls, *_: object) -> NoReturn:
        _refuse("a packed sequence is used as a tensor")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse("a packed sequence is used as a tensor")

    def __iter__(self) -> NoReturn:
        _refuse("a packed sequence is taken apart")


def _pack(steps: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Sequences, None]:
    trace = current()
    assert trace is not None
    ordered = steps.transpose(0, 1) if batch_first else steps
    return Sequences(ordered, lengths.to(steps.device), trace.greatest(lengths)), None


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
    steps = torch.where(_is_within(steps, packed.lengths), steps, value)
    return steps.transpose(0, 1) if batch_first else steps, packed.lengths


PACKING: Mapping[str, AnyFunction] = {"_pack_padded_sequence": _pack, "_pad_packed_sequence": _pad}
"""Functions of torch, by name, that a `Branches` mode calls in place of torch's own."""


def packed_sequence_init(original: AnyFunction) -> AnyFunction:
    """What `pack_padded_sequence` makes its result with."""

    def init(data: object, sizes: object, order: Tensor | None, inverse: object) -> object:
        if isinstance(data, Sequences):
            return replace(data, sorted_indices=order)
        return original(data, sizes, order, inverse)

    return init


def _is_within(steps: Tensor, lengths: Tensor) -> Tensor:
    """Whether a step is within the length of its sequence: [T, N, 1]."""
    numbers = torch.arange(steps.shape[0], device=steps.device).view(-1, 1, 1)
    return numbers < lengths.view(1, -1, 1)


def masked_layer(original: AnyFunction) -> AnyFunction:
    """The forward of a recurrent layer that takes `Sequences`, too."""

    def forward(self: nn.RNNBase, input: object, hx: object = None) -> object:
        if not isinstance(input, Sequences):
            return original(self, input, hx)
        self._update_flat_weights()
        steps, mask = input.steps, _is_within(input.steps, input.lengths)
        directions = 2 if self.bidirectional else 1
        states = _first_states(self, steps, hx, input.sorted_indices)
        finals: list[Sequence[Tensor]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                steps = F.dropout(steps, self.dropout, self.training)
            numbers = range(layer * directions, (layer + 1) * directions)
            results = [_run(self, k, steps, mask, [state[k] for state in states]) for k in numbers]
            steps = torch.cat([y for y, _ in results], -1)
            finals += [last for _, last in results]
        hidden = tuple(torch.stack(state) for state in zip(*finals, strict=True))
        last_states = hidden if isinstance(self, nn.LSTM) else hidden[0]
        permute: AnyFunction = self.permute_hidden
        return replace(input, steps=steps), permute(last_states, input.unsorted_indices)

    return forward


def _first_states(
    layer: nn.RNNBase, steps: Tensor, hx: object, order: Tensor | None
) -> tuple[Tensor, ...]:
    if hx is not None:
        permute: AnyFunction = layer.permute_hidden
        hidden = permute(hx, order)
        return hidden if isinstance(hidden, tuple) else (hidden,)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = [layer.proj_size or layer.hidden_size]
    if isinstance(layer, nn.LSTM):
        sizes.append(layer.hidden_size)
    return tuple(steps.new_zeros(count, steps.shape[1], size) for size in sizes)


def _run(
    layer: nn.RNNBase, number: int, steps: Tensor, mask: Tensor, state: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    """One direction of one layer, which have a number: its outputs and its last state."""
    backward = layer.bidirectional and number % 2 == 1
    w_ih, w_hh, *more = layer.all_weights[number]
    b_ih, b_hh = more[:2] if layer.bias else (None, None)
    project = more[-1] if layer.proj_size else None
    given = F.linear(steps, w_ih, b_ih)
    outputs: list[Tensor] = []
    times = range(steps.shape[0])
    for t in reversed(times) if backward else times:
        new = _step(layer.mode, given[t], F.linear(state[0], w_hh, b_hh), state)
        if project is not None:
            new = F.linear(new[0], project), *new[1:]
        state = [torch.where(mask[t], *values) for values in zip(new, state, strict=True)]
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


def _step(mode: str, given: Tensor, carried: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The next state, from the products of the weights with the input and with the state."""
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


def _refuse(what: str, remedy: str = "use what pad_packed_sequence returns") -> NoReturn:
    expected = "packed sequences that recurrent layers and pad_packed_sequence take"
    raise refusal(what, expected, code_at(user_line()) or "another use", remedy)
