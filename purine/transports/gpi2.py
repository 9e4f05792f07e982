"""The GPI-2 library through ctypes, and the one place where a process joins it.

GPI-2 is installed by the user and loaded at run time. A process can initialise it once, so all
transports of a process share one `Node` and have segments of their own.

Calls never wait inside the library, which spins over TCP. They return at once, and callers sleep
between two tries.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_int, c_ubyte, c_uint, c_ulong, c_ushort, c_void_p
from pathlib import Path

from torch import Tensor

from purine.errors import ConfigError, RunError
from purine.transports.base import Store

__all__ = ["LIBRARY", "Node", "join", "joined"]

LIBRARY = "PURINE_GPI2"
"""The variable with the path of `libGPI2.so`; without it, the loader's path is searched."""

_SUCCESS, _TIMEOUT, _FULL = 0, 1, 23
_TEST = 0
_SHORT = 1_000
_PATIENCE = 60_000
"""Timeouts in milliseconds."""
_LAUNCHER = ("GASPI_RANK", "GASPI_NRANKS", "GASPI_SOCKET", "GASPI_MFILE", "GASPI_MASTER")
_PER_MACHINE = 256
"""GPI-2 uses two ports of each process, this far apart, and one more for data over TCP."""

_SIGNATURES: dict[str, tuple[type, ...]] = {
    "gaspi_config_get": (c_void_p,),
    "gaspi_notification_num": (POINTER(c_uint),),
    "gaspi_notify": (c_ubyte, c_ushort, c_uint, c_uint, c_ubyte, c_ulong),
    "gaspi_notify_reset": (c_ubyte, c_uint, POINTER(c_uint)),
    "gaspi_notify_waitsome": (c_ubyte, c_uint, c_uint, POINTER(c_uint), c_ulong),
    "gaspi_proc_init": (c_ulong,),
    "gaspi_proc_num": (POINTER(c_ushort),),
    "gaspi_proc_rank": (POINTER(c_ushort),),
    "gaspi_queue_num": (POINTER(c_uint),),
    "gaspi_queue_size": (c_ubyte, POINTER(c_uint)),
    "gaspi_queue_size_max": (POINTER(c_uint),),
    "gaspi_segment_bind": (c_ubyte, c_void_p, c_ulong, c_int),
    "gaspi_segment_delete": (c_ubyte,),
    "gaspi_segment_register": (c_ubyte, c_ushort, c_ulong),
    "gaspi_state_vec_get": (POINTER(c_int),),
    "gaspi_transfer_size_max": (POINTER(c_ulong),),
    "gaspi_wait": (c_ubyte, c_ulong),
    "gaspi_write": (c_ubyte, c_ulong, c_ushort, c_ubyte, c_ulong, c_ulong, c_ubyte, c_ulong),
    "gaspi_write_notify": (
        *(c_ubyte, c_ulong, c_ushort, c_ubyte, c_ulong, c_ulong),
        *(c_uint, c_uint, c_ubyte, c_ulong),
    ),
}


_SETTINGS = "glb_gaspi_cfg"
"""Where GPI-2 keeps its settings, which `gaspi_config_get` copies."""
_DATA_PORT = 19_000
"""The first port for data in the settings of GPI-2 over TCP. `gaspi_config_set` passes it over."""


class _Config(ctypes.Structure):
    """The settings of GPI-2, of which only the two ports are read and changed."""

    _fields_ = [
        ("logger", c_uint),
        ("port", c_uint),
        ("unchanged", c_uint * 10),
        ("data_port", c_uint),
        ("rest", c_uint * 115),
    ]


class Node:
    """This process among all that joined. Any thread may make its calls."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.rank = self._number("gaspi_proc_rank", c_ushort)
        self.size = self._number("gaspi_proc_num", c_ushort)
        self.notifications = self._number("gaspi_notification_num", c_uint)
        """How many notifications a segment has."""
        self.lost: dict[int, str] = {}
        """Why a rank cannot be reached any more."""
        self._largest = self._number("gaspi_transfer_size_max", c_ulong)
        self._depth = self._number("gaspi_queue_size_max", c_uint)
        self._queues = self._number("gaspi_queue_num", c_uint)
        self._locks = [threading.Lock() for _ in range(self._queues)]
        self._segments: dict[int, Tensor] = {}
        """The memory of each segment, which must not be freed while others may write into it."""
        self._registry = threading.Lock()

    def bind(self, memory: Tensor) -> int:
        """Make a segment of memory of the CPU; returns its number."""
        with self._registry:
            segment = next(number for number in range(256) if number not in self._segments)
            code = self._library.gaspi_segment_bind(segment, memory.data_ptr(), memory.numel(), 0)
            _check(code, "gaspi_segment_bind", f"a segment of {memory.numel()} bytes")
            self._segments[segment] = memory
        return segment

    def register(self, segment: int, rank: int) -> None:
        """Let a rank write into a segment."""
        with self._registry:
            code = self._library.gaspi_segment_register(segment, rank, _PATIENCE)
        _check(code, "gaspi_segment_register", f"rank {rank} to know segment {segment}")

    def release(self, segment: int) -> None:
        """Release a segment that no rank writes into any more."""
        with self._registry:
            self._library.gaspi_segment_delete(segment)
            del self._segments[segment]

    def notify(self, rank: int, segment: int, notification: int, value: int) -> bool:
        """Set a notification of a rank. False if the queue is full: try again."""

        notify, where = self._library.gaspi_notify, (segment, rank, notification, value)
        return self._post(rank, 1, lambda queue: int(notify(*where, queue, _SHORT)))

    def write(
        self,
        rank: int,
        source: tuple[int, int],
        target: tuple[int, int],
        size: int,
        notification: int,
        value: int,
    ) -> bool:
        """Write bytes from `source` to `target` (segment and offset), then set a notification.

        False if the queue is full: try again. The bytes must stay until the rank has them.
        """
        starts = range(0, size, self._largest)

        def post(queue: int) -> int:
            write, last = self._library.gaspi_write, self._library.gaspi_write_notify
            code = _SUCCESS
            for start in starts:
                length = min(self._largest, size - start)
                where = (source[0], source[1] + start, rank, target[0], target[1] + start, length)
                if start != starts[-1]:
                    code = write(*where, queue, _SHORT)
                else:
                    code = last(*where, notification, value, queue, _SHORT)
                if code != _SUCCESS:
                    break
            return int(code)

        return self._post(rank, len(starts) + 1, post)

    def arrived(self, segment: int, count: int) -> list[tuple[int, int]]:
        """The notifications below `count` that are set, with their values; resets them."""
        arrived: list[tuple[int, int]] = []
        first, value, begin = c_uint(), c_uint(), 0
        while begin < count:
            code = self._library.gaspi_notify_waitsome(
                segment, begin, count - begin, byref(first), _TEST
            )
            if code != _SUCCESS:
                break
            begin = first.value + 1
            self._library.gaspi_notify_reset(segment, first.value, byref(value))
            if value.value:
                arrived.append((first.value, value.value))
        return arrived

    def settle(self, rank: int) -> bool:
        """Take completions off the queue of a rank; returns whether it is empty. Fills `lost`."""
        queue = rank % self._queues
        with self._locks[queue]:
            return self._settle(queue)

    def _settle(self, queue: int) -> bool:
        code = self._library.gaspi_wait(queue, _TEST)
        if code not in (_SUCCESS, _TIMEOUT):
            states = (c_int * self.size)()
            self._library.gaspi_state_vec_get(states)
            for rank, state in enumerate(states):
                if state:
                    self.lost.setdefault(rank, "its connection is broken")
        return bool(code == _SUCCESS)

    def _post(self, rank: int, entries: int, call: Callable[[int], int]) -> bool:
        """Add entries to the queue of a rank; entries for a lost rank are dropped.

        GPI-2 marks a rank as broken when its queue is full, so that must not happen.
        """
        queue, length = rank % self._queues, c_uint()
        with self._locks[queue]:
            if rank in self.lost:
                return True
            self._library.gaspi_queue_size(queue, byref(length))
            if length.value + entries > self._depth:
                self._settle(queue)
                self._library.gaspi_queue_size(queue, byref(length))
                if length.value + entries > self._depth:
                    return False
            code = call(queue)
            if code in (_TIMEOUT, _FULL):
                return False
            if code != _SUCCESS:
                self.lost.setdefault(rank, f"GPI-2 cannot write to it (code {code})")
            return True

    def _number(self, name: str, kind: type[c_uint | c_ushort | c_ulong]) -> int:
        value = kind()
        _check(getattr(self._library, name)(byref(value)), name, "a number")
        return int(value.value)


_node: Node | None = None
_joining = threading.Lock()


def join(store: Store, rank: int, size: int) -> Node:
    """The node of this process, which joins the others at the first call."""
    global _node
    with _joining:
        if _node is None:
            library = _loaded()
            if all(name in os.environ for name in _LAUNCHER):
                _start(library, size)
            else:
                _set_up(library, store, rank, size)
            _node = Node(library)
        return _node


def joined() -> Node:
    """The node of this process, which has joined before."""
    assert _node is not None, "this process has not joined GPI-2"
    return _node


def _loaded() -> ctypes.CDLL:
    path = os.environ.get(LIBRARY) or ctypes.util.find_library("GPI2")
    try:
        if path is None:
            raise OSError(f"no {LIBRARY}, and no libGPI2.so in the path of the loader")
        library = ctypes.CDLL(path)
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
            getattr(library, name).restype = c_int
        library.gaspi_config_set.argtypes = (_Config,)
        library.gaspi_config_set.restype = c_int
    except (OSError, AttributeError) as error:
        raise ConfigError(
            "the transport 'gaspi' needs the library GPI-2",
            expected=f"libGPI2.so at {LIBRARY} or in the loader's path",
            found=str(error),
            remedy=f"install GPI-2 and set {LIBRARY} to its libGPI2.so, or use another transport",
        ) from error
    return library


def _set_up(library: ctypes.CDLL, store: Store, rank: int, size: int) -> None:
    """Set the variables that `gaspi_run` would set: all hosts, their addresses and their ports."""
    own, master = _addresses()
    store.set(f"gpi2/{rank}", json.dumps([own, master]))
    hosts = _machines([json.loads(store.get(f"gpi2/{number}")) for number in range(size)])
    if rank == 0:
        store.set("gpi2/ports", json.dumps(_free_ports(size)))
    port, data_port = json.loads(store.get("gpi2/ports"))
    config = _Config()
    library.gaspi_config_get(byref(config))
    config.port = port
    _check(library.gaspi_config_set(config), "gaspi_config_set", f"ports from {port} up")
    if config.data_port == _DATA_PORT:
        _set_data_port(library, data_port, min(size, _PER_MACHINE))
    descriptor, name = tempfile.mkstemp(prefix="purine-gaspi-")
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{host}\n" for host in hosts)
    try:
        os.environ |= {
            "GASPI_MASTER": hosts[0],
            "GASPI_MFILE": name,
            "GASPI_RANK": str(rank),
            "GASPI_NRANKS": str(size),
            "GASPI_SOCKET": str(hosts[:rank].count(hosts[rank])),
        }
        _start(library, size)
    finally:
        Path(name).unlink()


def _set_data_port(library: ctypes.CDLL, port: int, count: int) -> None:
    """Set the first port for data where GPI-2 keeps it, so that several jobs fit on a machine."""
    try:
        _Config.in_dll(library, _SETTINGS).data_port = port
    except ValueError as error:  # this build shows no variables, and keeps its port
        taken = [number for number in range(_DATA_PORT, _DATA_PORT + count) if not _free(number)]
        if taken:
            raise RunError(
                "GPI-2 cannot have its ports for data on this machine",
                expected=f"free ports {_DATA_PORT} to {_DATA_PORT + count - 1}",
                found=f"{taken[0]} is in use, perhaps by another job over GPI-2",
                remedy="wait for that job, use another transport, or a GPI-2 that exports "
                f"{_SETTINGS}",
            ) from error


def _start(library: ctypes.CDLL, size: int) -> None:
    code = library.gaspi_proc_init(_PATIENCE)
    _check(code, "gaspi_proc_init", f"{size} processes that join GPI-2")


def _addresses() -> tuple[str, str]:
    """The address of this machine on the way to the first host, and that of the first host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        return probe.getsockname()[0], probe.getpeername()[0]


def _machines(addresses: Sequence[tuple[str, str]]) -> list[str]:
    """The address of each process as all others can reach it.

    Processes on the machine of the first host may see it under an address of the machine itself.
    The others know the one that counts.

    >>> _machines([("127.0.1.1", "127.0.1.1"), ("10.0.0.2", "10.0.0.1")])
    ['10.0.0.1', '10.0.0.2']
    """
    outside = [master for own, master in addresses if not own.startswith("127.")]
    local = outside[0] if outside else "127.0.0.1"
    return [local if own.startswith("127.") else own for own, _ in addresses]


def _free_ports(size: int) -> tuple[int, int]:
    """Two first ports, below those that the system gives to connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        data_port = port + 2 * _PER_MACHINE
        count = min(size, _PER_MACHINE)
        needed = [
            start + k for start in (port, port + _PER_MACHINE, data_port) for k in range(count)
        ]
        if all(map(_free, needed)):
            return port, data_port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _check(code: int, call: str, wanted: str) -> None:
    if code != _SUCCESS:
        raise RunError(
            f"{call} of GPI-2 failed",
            expected=wanted,
            found="no answer in time" if code == _TIMEOUT else f"return code {code}",
            remedy="check that all hosts run and can reach each other, and start all of them again",
        )
