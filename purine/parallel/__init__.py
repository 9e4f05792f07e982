"""Schemes of parallelism: functions from graph to graph."""

from purine.parallel.copies import insert_copies
from purine.parallel.cut import balanced_cut, cut_at
from purine.parallel.devices import devices_of, parse_devices
from purine.parallel.memory import peak_memory
from purine.parallel.pipeline import pipeline
from purine.parallel.replicate import replicate
from purine.parallel.schedule import (
    SCHEDULES,
    Schedule,
    bubble,
    bubble_formula,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)

__all__ = [
    "SCHEDULES",
    "Schedule",
    "balanced_cut",
    "bubble",
    "bubble_formula",
    "cut_at",
    "devices_of",
    "gpipe",
    "insert_copies",
    "interleaved",
    "one_f_one_b",
    "parse_devices",
    "peak_memory",
    "pipeline",
    "replicate",
    "zero_bubble",
]
