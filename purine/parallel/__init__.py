"""Schemes of parallelism: functions from graph to graph."""

from purine.parallel.copies import insert_copies
from purine.parallel.devices import devices_of, parse_devices
from purine.parallel.replicate import replicate

__all__ = ["devices_of", "insert_copies", "parse_devices", "replicate"]
