"""Records of what workers did: written, read back, cut and joined."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine.errors import CheckpointError
from purine.runtime.record import COMPLETES, CUT, OPENS, Record

TABLE = ((0, OPENS), (0, COMPLETES), (0, "read"), (1, OPENS), (1, COMPLETES))
ONE, OTHER = (1, 3, 2), (4, 5)


def record(*events: int) -> Record:
    return Record("digest", 5, (2, 3), 2, TABLE, array("H", events))


@given(st.lists(st.integers(0, len(TABLE)), max_size=40))
def test_it_reads_back(events: list[int]) -> None:
    one = record(*events)
    assert Record.from_bytes(one.to_bytes()) == one


def test_files(tmp_path: Path) -> None:
    one = record(*ONE, CUT)
    one.save(tmp_path / "record")
    assert Record.load(tmp_path / "record") == one


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}\n",
        b'{"form": "purine record 2"}\n',
        record(*ONE).to_bytes()[:-3],
        record(len(TABLE) + 1).to_bytes(),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="the record of a run"):
        Record.from_bytes(data)


def test_it_is_split_at_a_cut_and_joined_again() -> None:
    whole = record(*ONE, *OTHER, CUT, *ONE, CUT)
    assert (whole.cuts, whole.iterations) == ((5, 7, 8), 3)
    before, after = whole.split(7)
    assert (before.starts, after.starts, after.start) == ((2, 3), (3, 4), 7)
    assert before.then(after) == whole
    assert whole.split(5) == (record(), whole)
    with pytest.raises(CheckpointError, match="cannot be cut there"):
        whole.split(6)


def test_what_does_not_follow_is_not_joined() -> None:
    later = Record("digest", 9, (4, 5), 2, TABLE, array("H", ONE))
    assert record(*ONE, CUT).then(later) == later
