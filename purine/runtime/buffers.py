"""The values of the iterations in flight, and the effects of an op on them.

There are no threads here. Executors call `run` from the lane of the op and `release` under a lock;
tests call both in any order that the core allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from purine.errors import KernelError
from purine.graph import Op
from purine.lowering.segments import SegmentError
from purine.runtime.program import Program, Step

__all__ = ["Buffers"]


class Buffers:
    """One list of values per iteration in flight, and one for the next values of states.

    `states` are the values that iteration `start` reads, `feeds` those of the graph's inputs.
    `credit` bounds the iterations in flight. States without a value are given with `put`.
    """

    def __init__(
        self,
        program: Program,
        *,
        states: Mapping[str, Tensor],
        feeds: Mapping[str, Tensor],
        start: int,
        credit: int,
    ) -> None:
        self.program = program
        self._steps, self.size = program.steps, len(program.steps)
        self.slots = credit + program.plan.reach
        numbers = program.blobs
        given = {**states, **feeds}
        fresh: list[Any] = [None] * len(program.uses)
        for name in program.constants:
            fresh[numbers[name]] = given[name]
        self._values = [fresh.copy() for _ in range(self.slots)]
        for name in program.graph.states.keys() & states.keys():
            self._values[start % self.slots][numbers[name]] = states[name]
        for name, (number, age) in program.old.items():
            for iteration in range(start, start + age + 1):
                self._values[iteration % self.slots][number] = states[name]
        self._uses = [list(program.uses) for _ in range(self.slots)]
        self._watched = [list(program.watched) for _ in range(self.slots)]
        self._outputs = [(name, numbers[name]) for name in program.graph.outputs]

    def run(self, token: int) -> None:
        """Call the kernel of an op and store its results."""
        slot = token // self.size % self.slots
        step = self._steps[token % self.size]
        values = self._values[slot]
        arguments = [values[number] for number in step.reads]
        if step.checked:
            if token // self.size % step.every != step.phase:
                self._skip(step, slot)
                return
            for position, family in step.over:
                if self._watched[slot][family] != 1:  # another op has still to read it
                    arguments[position] = arguments[position].clone()
        try:
            results = step.kernel(*arguments)
        except SegmentError as error:
            raise self._kernel_error(token, error.op, error.inputs, error.error) from error.error
        except Exception as error:
            op = self.program.graph.ops[self.program.plan.ops[token % self.size]]
            raise self._kernel_error(token, op, arguments, error) from error
        writes = step.writes
        if len(writes) == 1:
            if writes[0] >= 0:
                values[writes[0]] = results
            if step.carries:
                self._values[(slot + 1) % self.slots][step.carries[0][1]] = results
                if step.stale:
                    self._keep(step, slot)
        else:
            for number, result in zip(writes, results, strict=True):
                if number >= 0:
                    values[number] = result
            for index, number in step.carries:
                self._values[(slot + 1) % self.slots][number] = results[index]
            if step.stale:
                self._keep(step, slot)
        for number in step.drops:
            values[number] = None

    def _skip(self, step: Step, slot: int) -> None:
        """Leave an op out of an iteration: states that it updates keep their values."""
        values, following = self._values[slot], self._values[(slot + 1) % self.slots]
        for _, number in step.carries:
            following[number] = values[number]
        self._keep(step, slot)
        for number in step.drops:
            values[number] = None

    def _keep(self, step: Step, slot: int) -> None:
        """Keep the next values of states for the iterations that read them late."""
        following = self._values[(slot + 1) % self.slots]
        for newest, late, distance in step.stale:
            self._values[(slot + distance) % self.slots][late] = following[newest]

    def value(self, iteration: int, blob: str) -> Tensor:
        """The value that a blob has in an iteration in flight."""
        value: Tensor = self._values[iteration % self.slots][self.program.blobs[blob]]
        return value

    def put(self, iteration: int, number: int, value: Tensor) -> None:
        """Give an iteration in flight one of its values."""
        self._values[iteration % self.slots][number] = value

    def take(self, iteration: int, blob: str) -> Tensor:
        """Remove the value of a blob and return it."""
        values, number = self._values[iteration % self.slots], self.program.blobs[blob]
        value: Tensor = values[number]
        values[number] = None
        return value

    def release(self, token: int) -> None:
        """Release the values of which the op was the last reader. One caller at a time."""
        step = self._steps[token % self.size]
        if not (step.shared or step.families):
            return
        slot = token // self.size % self.slots
        uses, values = self._uses[slot], self._values[slot]
        for number in step.shared:
            uses[number] -= 1
            if not uses[number]:
                values[number] = None
        watched = self._watched[slot]
        for family in step.families:
            watched[family] -= 1

    def collect(self, iteration: int) -> dict[str, Tensor]:
        """The outputs of a complete iteration, whose slot becomes free for another."""
        slot = iteration % self.slots
        values = self._values[slot]
        outputs = {name: values[number] for name, number in self._outputs}
        for name, number in self._outputs:
            if name not in self.program.constants:
                values[number] = None
        self._uses[slot] = list(self.program.uses)
        self._watched[slot] = list(self.program.watched)
        return outputs

    def states(self, iteration: int) -> dict[str, Tensor]:
        """The states that `iteration` reads, once the one before it is complete.

        States that workers share are not among them.
        """
        values = self._values[iteration % self.slots]
        states, blobs = self.program.graph.states.items(), self.program.blobs
        return {name: values[blobs[name]] for name, state in states if not state.shared}

    def held(self) -> int:
        """The number of values that are held now, without constants."""
        held = sum(value is not None for values in self._values for value in values)
        return held - len(self.program.constants) * self.slots

    def _kernel_error(
        self, token: int, op: Op, inputs: Sequence[Tensor], error: Exception
    ) -> KernelError:
        given = ", ".join(
            f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            for name, value in zip(op.inputs, inputs, strict=True)
        )
        return KernelError(
            f"op {op.name!r} ({op.kind}) at {op.location}, lane {op.lane}, "
            f"failed in iteration {token // self.size}: {error}",
            op=op,
            expected="a kernel that takes its inputs",
            found=f"{type(error).__name__} on {given or 'no inputs'}",
            remedy="correct the inputs or the op; the last checkpoint is intact",
        )
