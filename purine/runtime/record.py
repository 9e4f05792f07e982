"""The record of a run of several workers, from which it can be repeated to the same bits.

A record is one sequence of events: a worker opened an iteration, fetched or updated shared states,
or completed an iteration. An event is one small number. At a *cut* no iteration was in flight.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from purine.errors import CheckpointError
from purine.files import put_in_place

__all__ = ["COMPLETES", "CUT", "OPENS", "Record"]

OPENS, COMPLETES = "opens", "completes"
"""Stand in place of an op for the two ends of an iteration."""
CUT = 0
"""The event after which nothing is in flight."""
_FORM = "purine record 1"
_BIG_ENDIAN = sys.byteorder == "big"


@dataclass(frozen=True)
class Record:
    """The events of a run from `start` on, when worker w was at iteration `starts[w]`.

    Event number k > 0 stands for `table[k - 1]`: a worker, and its action. `credit` is the largest
    number of iterations of a worker in flight, `digest` that of the graph.

    >>> record = Record("", 0, (0,), 1, ((0, OPENS), (0, "read"), (0, COMPLETES)))
    >>> record.events.extend((1, 2, 3, CUT))
    >>> list(record), record.iterations
    ([(0, 'opens'), (0, 'read'), (0, 'completes')], 1)
    >>> Record.from_bytes(record.to_bytes()) == record
    True
    """

    digest: str
    start: int
    starts: tuple[int, ...]
    credit: int
    table: tuple[tuple[int, str], ...]
    events: array[int] = field(default_factory=lambda: array("H"))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """The events, without cuts."""
        return (self.table[event - 1] for event in self.events if event != CUT)

    @property
    def iterations(self) -> int:
        """The number of complete iterations of all workers at the end of the record."""
        ends = {k for k, (_, what) in enumerate(self.table, 1) if what == COMPLETES}
        return sum(event in ends for event in self.events)

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of complete iterations at which no iteration was in flight."""
        ends = {k for k, (_, what) in enumerate(self.table, 1) if what == COMPLETES}
        complete, cuts = self.start, [self.start]
        for event in self.events:
            complete += event in ends
            if event == CUT:
                cuts.append(complete)
        return tuple(cuts)

    def split(self, iteration: int) -> tuple[Record, Record]:
        """The events before the cut at an iteration, and those after it."""
        ends = {k: worker for k, (worker, what) in enumerate(self.table, 1) if what == COMPLETES}
        counts, complete, position = [*self.starts], self.start, 0
        while complete < iteration and position < len(self.events):
            event = self.events[position]
            position += 1
            if event in ends:
                complete += 1
                counts[ends[event]] += 1
        while position < len(self.events) and self.events[position] == CUT:
            position += 1
        if complete != iteration or iteration not in self.cuts:
            what, expected = "a record cannot be cut there", ", ".join(map(str, self.cuts[-8:]))
            found, remedy = f"iteration {iteration}", "load a checkpoint of the same run"
            raise CheckpointError(what, f"one of iterations {expected}", found, remedy)
        head, tail = self.events[:position], self.events[position:]
        same = (self.credit, self.table)
        before = Record(self.digest, self.start, self.starts, *same, head)
        return before, Record(self.digest, iteration, tuple(counts), *same, tail)

    def then(self, later: Record) -> Record:
        """This record followed by one that begins where it ends."""
        if (later.table, later.start) != (self.table, self.cuts[-1]):
            return later  # of another run: what came before is not known
        credit = max(self.credit, later.credit)
        return replace(self, credit=credit, events=self.events + later.events)

    def to_bytes(self) -> bytes:
        """The record as a line of JSON and the compressed events."""
        head = {
            "form": _FORM,
            "digest": self.digest,
            "start": self.start,
            "starts": self.starts,
            "credit": self.credit,
            "table": self.table,
        }
        events = array("H", self.events)
        if _BIG_ENDIAN:
            events.byteswap()
        return json.dumps(head).encode() + b"\n" + zlib.compress(events.tobytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        """The record that `to_bytes` wrote; `CheckpointError` for anything else."""
        line, _, packed = data.partition(b"\n")
        try:
            head = json.loads(line)
            if head["form"] != _FORM:
                raise ValueError(head["form"])
            events = array("H", zlib.decompress(packed))
            table = tuple((int(worker), str(what)) for worker, what in head["table"])
            starts = tuple(int(start) for start in head["starts"])
            counts = int(head["start"]), starts, int(head["credit"])
            record = cls(str(head["digest"]), *counts, table, events)
        except (ValueError, KeyError, TypeError, OverflowError, zlib.error) as error:
            what, expected = "the record of a run cannot be read", f"a file that begins {_FORM!r}"
            found, remedy = f"{type(error).__name__}: {error}", "restore the file from a copy"
            raise CheckpointError(what, expected, found, remedy) from error
        if _BIG_ENDIAN:
            events.byteswap()
        if any(event > len(table) for event in set(events)):
            what, expected = "the record of a run is damaged", f"events up to {len(table)}"
            remedy = "restore the file from a copy"
            raise CheckpointError(what, expected, str(max(events)), remedy)
        return record

    def save(self, path: Path) -> None:
        """Write the record to a file, whole or not at all."""
        put_in_place(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a record from a file."""
        return cls.from_bytes(path.read_bytes())
