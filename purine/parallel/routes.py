"""Spanning trees along which hosts reduce gradients and return parameters.

A host sends to its parent and receives from its children, so the number of its transfers is bounded
whatever the number of hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import gcd
from typing import Literal, TypeAlias

__all__ = ["FAN_IN", "Form", "Route"]

Form: TypeAlias = Literal["star", "tree", "path", "flat"]
FAN_IN = 16
"""How many hosts send to one host of a star. With more than 17 hosts the star is a tree."""
_WIDTHS: Mapping[Form, int] = {"star": FAN_IN, "tree": 2, "path": 1, "flat": sys.maxsize}
"""How many children a node of a route has at most."""


@dataclass(frozen=True, slots=True)
class Route:
    """A spanning tree of hosts, numbered from its root. `places` tells where each of `hosts` is.

    A node of a "star" has at most `FAN_IN` children. Nodes with children have low numbers; beyond
    one level these go to hosts `stride` places apart, so that trees with neighbouring roots have
    them on different hosts. In a "flat" tree all hosts are children of the root.

    >>> hosts = ("a", "b", "c", "d")
    >>> route = Route(hosts, {host: place for place, host in enumerate(hosts)}, "b", "tree")
    >>> [route.host(k) for k in range(4)], route.children(0), route.children(1)
    (['b', 'c', 'd', 'a'], [1, 2], [3])
    """

    hosts: tuple[str, ...]
    places: Mapping[str, int]
    root: str
    form: Form

    def host(self, number: int) -> str:
        return self.hosts[(self.places[self.root] + number * self.stride) % len(self.hosts)]

    def number(self, host: str) -> int:
        distance, hosts = self.places[host] - self.places[self.root], len(self.hosts)
        return distance * pow(self.stride, -1, hosts) % hosts

    def parent(self, number: int) -> int:
        return (number - 1) // _WIDTHS[self.form]

    def children(self, number: int) -> list[int]:
        width = _WIDTHS[self.form]
        first = width * number + 1
        return list(range(first, min(first + width, len(self.hosts))))

    @property
    def is_flat(self) -> bool:
        """Whether the root receives from all other hosts itself."""
        return self.form == "flat" or (self.form == "star" and len(self.hosts) <= FAN_IN + 1)

    @property
    def stride(self) -> int:
        if self.form != "star" or self.is_flat:
            return 1
        return next(k for k in count(FAN_IN) if gcd(k, len(self.hosts)) == 1)
