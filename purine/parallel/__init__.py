"""Schemes of parallelism: functions from graph to graph."""

from purine.analysis.memory import peak_memory
from purine.parallel.accumulate import accumulate
from purine.parallel.compress import compress
from purine.parallel.cut import balanced_cut, cut_at, times_of_step
from purine.parallel.delay import delay
from purine.parallel.floating import floating
from purine.parallel.hybrid import hybrid
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
from purine.parallel.scheme import Scheme
from purine.parallel.serve import Asynchronous, serve
from purine.parallel.shard import shard
from purine.placement.copies import bytes_moved, insert_copies
from purine.placement.devices import devices_of, parse_devices
from purine.placement.place import place, place_at_cut, to_device
from purine.placement.values import gather_values, shard_values

__all__ = [
    "SCHEDULES",
    "Asynchronous",
    "Schedule",
    "Scheme",
    "accumulate",
    "balanced_cut",
    "bubble",
    "bubble_formula",
    "bytes_moved",
    "compress",
    "cut_at",
    "delay",
    "devices_of",
    "floating",
    "gather_values",
    "gpipe",
    "hybrid",
    "insert_copies",
    "interleaved",
    "one_f_one_b",
    "parse_devices",
    "peak_memory",
    "pipeline",
    "place",
    "place_at_cut",
    "replicate",
    "serve",
    "shard",
    "shard_values",
    "times_of_step",
    "to_device",
    "zero_bubble",
]
