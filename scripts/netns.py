"""Two hosts on one machine that have a network between them: namespaces with a link. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

__all__ = ["ADDRESSES", "LINK", "Link", "linked_hosts"]

ADDRESSES = ("10.78.0.1", "10.78.0.2")
"""Of the hosts. All pairs of namespaces have the same, since they do not see each other."""
LINK = "purinelink"
_NUMBERS = count()


@dataclass(frozen=True)
class Link:
    """The link between two namespaces."""

    spaces: tuple[str, str]

    def inside(self, host: int) -> list[str]:
        """The words before a command that runs on a host."""
        return ["ip", "netns", "exec", self.spaces[host]]

    def cut(self, host: int) -> None:
        """Set the end of a host down. Nothing tells the processes on either side."""
        subprocess.run([*self.inside(host), "ip", "link", "set", LINK, "down"], check=True)


@contextmanager
def linked_hosts() -> Iterator[Link]:
    """Two namespaces with a link between them, for as long as this lasts."""
    number = next(_NUMBERS)
    link = Link((f"purine-{os.getpid()}-{number}-0", f"purine-{os.getpid()}-{number}-1"))
    first, second = link.spaces
    try:
        for space in link.spaces:
            subprocess.run(["ip", "netns", "add", space], check=True)
        ends = ["ip", "link", "add", LINK, "netns", first, "type", "veth", "peer", "name", LINK]
        subprocess.run([*ends, "netns", second], check=True)
        for host, address in enumerate(ADDRESSES):
            for words in (
                ["ip", "addr", "add", f"{address}/24", "dev", LINK],
                ["ip", "link", "set", LINK, "up"],
                ["ip", "link", "set", "lo", "up"],
            ):
                subprocess.run([*link.inside(host), *words], check=True)
        yield link
    finally:
        for space in link.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)
