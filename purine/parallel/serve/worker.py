"""The step of one worker while a scheme changes it, and the graph of all workers.

A scheme changes the step of a worker under the names of the step. Then all workers are put into one
graph, in which the own states of a worker are called `worker0/...`. Workers share only states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import purine.kinds.asynchronous
import purine.kinds.versions  # noqa: F401  (registers the kinds)
from purine.graph import FETCH, LAST, NOTHING, Attribute, Builder, Filler, Graph, Origin
from purine.graph.names import origin_of, worker_of
from purine.parallel.halves import Halves, halve
from purine.parallel.serve.rule import Asynchronous
from purine.registry.clock import ITERATION
from purine.registry.fillers import with_name

__all__ = ["TICKETS", "Worker", "join_workers"]

TICKETS = "tickets"
"""The shared state that counts the batches of all workers: the iteration of the whole run."""
_TICKET = "ticket"
_STEPS = "steps"
"""What a worker's own count of iterations is called in values of the whole."""


@dataclass
class Worker:
    """A worker's step, to be changed: its number of `count`, and facts about the step."""

    step: Graph
    number: int
    count: int
    rule: Asynchronous
    builder: Builder = field(init=False)
    halves: Halves = field(init=False)
    updates: dict[str, str] = field(init=False)
    """By trained parameter, the op that updates it."""
    shared: dict[str, str] = field(init=False, default_factory=dict)
    """By state that several workers have, the name that they share it under."""

    def __post_init__(self) -> None:
        self.builder, self.halves = Builder(self.step), halve(self.step)
        states, producers = self.step.states, self.step.producers
        self.updates = {
            name: producers[states[name].next].name
            for name in self.halves.gradients
            if states[name].next in producers
        }

    @property
    def parameters(self) -> tuple[str, ...]:
        """The trained parameters."""
        return tuple(self.updates)

    def memories(self, parameter: str) -> list[str]:
        """The states of the solver for a parameter."""
        read = self.step.ops[self.updates[parameter]].inputs
        others = (parameter, ITERATION)
        return [name for name in read if name in self.step.states and name not in others]

    def rate(self, parameter: str) -> str:
        """The rate that the update of a parameter reads: the input after its solver states."""
        update = self.builder.ops[self.updates[parameter]]
        return update.inputs[2 + len(self.memories(parameter))]

    def gradient(self, parameter: str) -> str:
        """The gradient that the update of a parameter reads."""
        return self.step.ops[self.updates[parameter]].inputs[1]

    def share(self, state: str, *, bound: int | None, under: str | None = None) -> None:
        """Make a state one value of all workers."""
        self.shared[state] = under or state
        self.builder.states[state] = replace(self.builder.states[state], staleness=bound)

    def blob(self, name: str, like: str) -> str:
        """Add a blob that is typed and placed as another."""
        self.builder.add(replace(self.builder.blobs[like], name=name, where=None))
        return name

    def state(self, name: str, like: str, *, first: str | None = None) -> str:
        """Add a state that is typed and placed as a parameter, and return the name of its next
        value. It starts as 0, or as the state `first` does."""
        following = self.blob(f"{self.blob(name, like)}/next", like)
        filler = Filler() if first is None else with_name(self.step.states[first].filler, first)
        origin = Origin(like, "update") if first is None else None
        self.builder.state(name, following, filler, origin=origin)
        return following

    def counter(self, name: str, *, under: str | None = None) -> str:
        """Add a shared state that counts from 0, and return the name of its next value."""
        at = self.step.blobs[ITERATION].location
        for one in (name, f"{name}/next"):
            self.builder.blob(one, (), "int64", at)
        self.builder.state(name, f"{name}/next")
        self.share(name, bound=None, under=under)
        return f"{name}/next"

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        of: str,
        turns: tuple[int, int] = (1, 0),
    ) -> None:
        """Add an op at the location of its first output; it runs in iteration `turns[1]` of
        `turns[0]`, and belongs to the parameter `of`."""
        every, phase = turns
        self.builder.op(
            name,
            kind,
            inputs,
            outputs,
            attributes,
            location=self.builder.blobs[outputs[0]].location,
            origin=Origin(of, "update"),
            every=every,
            phase=phase,
        )

    def fetch(self, state: str, *, of: str, every: int = 1) -> str:
        """Add the op that reads the newest version of a state, and return what it reads."""
        version = self.blob(f"{state}/fetched", state)
        self.op(f"fetch/{state}", FETCH, [state], [version], of=of, turns=(every, 0))
        return version

    def last(self, name: str, like: str, *values: str) -> str:
        """Add the op that continues with the last of these values that exists, and return its
        output."""
        blob = name if name in self.builder.blobs else self.blob(name, like)
        self.op(name, LAST, values, [blob], of=like)
        return blob

    def read_as(self, name: str, other: str, *, but: Sequence[str] = ()) -> None:
        """Let all ops of the step, except the named ones, read another blob instead of this one."""
        for reader in self.step.consumers[name]:
            if reader.name not in but:
                op = self.builder.ops[reader.name]
                self.builder.ops[reader.name] = op.renamed({name: other})

    def take_tickets(self, *, versions: bool) -> None:
        """Use the batch, and the rate, of a ticket that no other worker has.

        A ticket counts batches of one worker, of which synchronous training takes `count` in an
        iteration. With `versions` solvers that count their updates count those of all workers.
        """
        builder = self.builder
        ticket = self.blob(_TICKET, ITERATION)
        following = self.counter(TICKETS, under=ITERATION)
        self.op(_TICKET, "Take", [TICKETS], [ticket, following], of=TICKETS)
        builder.ops[_TICKET] = replace(builder.ops[_TICKET], lane="io", origin=None)
        clock = self.step.states[ITERATION]
        once = {op.name for op in self.halves.once}
        rounds = ITERATION
        for reader in self.step.consumers[ITERATION]:
            if clock.next in reader.outputs:
                continue
            used = ticket
            if reader.name in once and origin_of(reader).role == "update":
                used = ticket if versions else ITERATION
            elif reader.name in once:
                if self.rule.rates == "tickets" and rounds == ITERATION:
                    rounds = self._rounds(ticket)
                used = rounds
            builder.ops[reader.name] = builder.ops[reader.name].renamed({ITERATION: used})
        readers = {op.name for op in builder.ops.values() if ITERATION in op.inputs}
        if readers <= {f"{ITERATION}/add"}:
            self._drop_clock()

    def take_own_tickets(self) -> None:
        """Use a batch that no other worker has, without communication.

        Of each `count` batches a worker takes that of its number. Rates count its own iterations.
        """
        once = {op.name for op in self.halves.once}
        readers = [op for op in self.step.consumers[ITERATION] if op.name not in once]
        if self.count == 1 or not readers:
            return
        turn, ticket = self.blob("turn", ITERATION), self.blob(_TICKET, ITERATION)
        count, number = {"other": self.count}, {"other": self.number}
        self.op(turn, "aten.mul.Scalar", [ITERATION], [turn], count, of=ITERATION)
        self.op(ticket, "aten.add.Scalar", [turn], [ticket], number, of=ITERATION)
        for name in (turn, ticket):
            self.builder.ops[name] = replace(self.builder.ops[name], lane="io", origin=None)
        for reader in readers:
            op = self.builder.ops[reader.name]
            self.builder.ops[reader.name] = op.renamed({ITERATION: ticket})

    def name_filler(self, state: str) -> None:
        """Let a state that is shared under another name start with its value in the step."""
        one = self.builder.states[state]
        self.builder.states[state] = replace(one, filler=with_name(one.filler, state))

    def _rounds(self, ticket: str) -> str:
        """The iteration of synchronous training of a ticket."""
        if self.count == 1:
            return ticket
        name = self.blob("round", ITERATION)
        floor: dict[str, Attribute] = {"other": self.count, "rounding_mode": "floor"}
        self.op(name, "aten.div.Scalar_mode", [ticket], [name], floor, of=TICKETS)
        self.builder.ops[name] = replace(self.builder.ops[name], origin=None)
        return name

    def _drop_clock(self) -> None:
        """Remove the worker's own count of iterations, which nothing reads."""
        builder = self.builder
        following = builder.states.pop(ITERATION).next
        maker = self.step.producers.get(following)
        if maker is not None:
            del builder.ops[maker.name]
            builder.control = {edge for edge in builder.control if maker.name not in edge}
        for name in {ITERATION, following}:
            del builder.blobs[name]


def join_workers(workers: Sequence[Worker]) -> Graph:
    """One graph of the steps of all workers; the outputs are those of each."""
    builder = Builder()
    for worker in workers:
        _add(builder, worker)
    return builder.graph()


def _add(builder: Builder, worker: Worker) -> None:
    """Add a worker, under names that begin with its own."""
    own, number = worker.builder, worker.number
    names = {name: worker_of(number, name) for name in own.blobs} | {NOTHING: NOTHING}

    def named(name: str) -> str:
        return names.get(name, worker_of(number, name))

    for blob in own.blobs.values():
        builder.add(replace(blob, name=names[blob.name]))
    for op in own.ops.values():
        origin = origin_of(op)
        known = origin.of in own.blobs or origin.of in own.ops
        parts, of = named(origin.parts), named(origin.of) if known else origin.of
        builder.add(
            replace(
                op.renamed(names),
                name=named(op.name),
                origin=replace(origin, of=of, parts=parts),
                worker=number,
            )
        )
    for state in own.states.values():
        kept = state.origin
        builder.add(
            replace(
                state,
                read=names[state.read],
                next=names[state.next],
                filler=_filler(worker, state.read),
                origin=None if kept is None else replace(kept, of=named(kept.of)),
                shared=worker.shared.get(state.read, ""),
            )
        )
    builder.control |= {(named(before), named(after)) for before, after in own.control}
    builder.outputs += [names[name] for name in own.outputs]


def _filler(worker: Worker, state: str) -> Filler:
    """The filler of a state of a worker: that of the state of the step with this name."""
    filler = worker.builder.states[state].filler
    if state in worker.shared or "name" in filler.attributes:
        return filler
    return with_name(filler, _STEPS if state == ITERATION else state)
