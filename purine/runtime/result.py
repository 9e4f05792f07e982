"""The results of iterations of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from purine.arguments import shown
from purine.errors import ConfigError

__all__ = ["Result", "Results"]


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of the graph in one iteration; `losses` names those that are minimised.

    In a graph with workers it is an iteration of one `worker`, its number `own` of that worker. Up
    to `staleness` older iterations of another worker were missing from the values that it fetched.
    Other workers made up to `missed` versions of a state between its fetch and its update.
    """

    iteration: int
    outputs: Mapping[str, Tensor]
    losses: tuple[str, ...] = ()
    worker: int = 0
    own: int | None = None
    staleness: int = 0
    missed: int = 0

    def __getitem__(self, name: str) -> float:
        value = self.outputs.get(name)
        if value is None or value.numel() != 1:
            raise ConfigError(
                f"the iteration has no number {name!r}",
                blob=name if isinstance(name, str) else None,
                expected=f"one of {', '.join(self.outputs) or 'no outputs'}",
                found=shown(name) if value is None else f"shape {list(value.shape)}",
                remedy="let the net report it with Net.output"
                if value is None
                else f"read the tensor: result.outputs[{name!r}]",
            )
        return float(value)

    @property
    def loss(self) -> float:
        """The value of blob `loss`, or of the only loss if it has another name."""
        if "loss" in self.outputs:
            return self["loss"]
        if len(self.losses) == 1:
            return self[self.losses[0]]
        several = bool(self.losses)
        raise ConfigError(
            f"the net reports {len(self.losses)} losses, none of them as 'loss'",
            expected="an output 'loss', or a single loss",
            found=", ".join(self.losses or self.outputs) or "no outputs",
            remedy=f"name one: result[{self.losses[0]!r}]" if several else "read result.outputs",
        )


class Results(Iterator[Result]):
    """`count` results from `step`, which gets the number that is left.

    Several threads may take from it. `before` is called before a thread waits for its turn.
    """

    def __init__(
        self, step: Callable[[int], Result], count: int, *, before: Callable[[], None]
    ) -> None:
        self._step, self._left, self._before = step, count, before
        self._turn = threading.Lock()

    def __next__(self) -> Result:
        self._before()
        with self._turn:
            if self._left == 0:
                raise StopIteration
            try:
                result = self._step(self._left)
            except StopIteration as error:  # a loop would take it for the end
                raise RuntimeError("an iteration raised StopIteration") from error
            self._left -= 1
            return result
