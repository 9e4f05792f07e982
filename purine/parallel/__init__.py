"""Schemes of parallelism: functions from graph to graph."""

from purine.parallel.copies import bytes_moved, insert_copies
from purine.parallel.devices import devices_of, parse_devices
from purine.parallel.hybrid import hybrid
from purine.parallel.place import place, place_at_cut
from purine.parallel.replicate import replicate
from purine.parallel.shard import shard
from purine.parallel.values import gather_values, shard_values

__all__ = [
    "bytes_moved",
    "devices_of",
    "gather_values",
    "hybrid",
    "insert_copies",
    "parse_devices",
    "place",
    "place_at_cut",
    "replicate",
    "shard",
    "shard_values",
]
