"""Everything in Purine that changes the state of the whole process, in one table.

Each effect has a name and can be declined: `PURINE_DECLINE=heap,spin` leaves these two out. Effects
of `import purine` are declined in the environment of the process, or in `os.environ` before the
import; the others at any time before they take place. An unknown name is an error of `Run` and of
`compute`. The module that applies an effect asks `applies` first.

Changes that last no longer than one call and are restored behind it (filters of warnings while a
module is traced, for example) are not in the table. Neither are those of the command line, which
owns its process: `purine train` handles signals and logs to the terminal.
"""

from __future__ import annotations

from typing import NamedTuple

from purine.errors import ConfigError
from purine.machine.environment import VARIABLE, declined
from purine.nearest import unknown_name

__all__ = ["EFFECTS", "Effect", "applies", "effects_table"]


class Effect(NamedTuple):
    """One change of the whole process: when it takes place, how long it lasts, and its purpose."""

    name: str
    changes: str
    when: str
    until: str
    why: str
    when_declined: str


EFFECTS: tuple[Effect, ...] = (
    Effect(
        "huge-pages",
        "sets `THP_MEM_ALLOC_ENABLE=1`, unless it is set",
        "`import purine`",
        "the process ends; torch reads it at its first allocation",
        "a new buffer of 50 MB costs 25 page faults instead of 12,000",
        "large buffers are slower; `heap` does nothing",
    ),
    Effect(
        "spin",
        "sets `GOMP_SPINCOUNT=4000`, unless it or `OMP_WAIT_POLICY` is set",
        "`import purine`; no effect if torch was imported before",
        "the process ends; GNU OpenMP reads it when it is loaded",
        "idle OpenMP threads spin longer than the gap between two kernels, but not for the 7 ms "
        "that is the library's default and that slows down a machine with other work "
        "(`benchmarks/busy.py`)",
        "OpenMP threads spin as the library chooses",
    ),
    Effect(
        "interrupt",
        "`sys.excepthook` prints no traceback for Ctrl-C",
        "`import purine` by the command line",
        "the process ends",
        "a command that is interrupted while it imports torch prints no traceback",
        "Python prints the traceback",
    ),
    Effect(
        "stacks",
        "sets `TORCH_CPP_LOG_LEVEL=ERROR`, unless it is set",
        "`import purine` by the command line",
        "the process ends; torch reads it when it is loaded",
        "where a host is lost, torch prints no stack for each call on the store that fails",
        "torch prints its warnings, those with stacks too",
    ),
    Effect(
        "heap",
        "calls `mallopt`: the number of arenas and the sizes from which malloc maps and returns "
        "memory",
        "`Run(graph)` on CPUs of a Linux system with huge pages",
        "the process ends: `mallopt` cannot be undone; the last `Run` counts",
        "activations reuse their memory without page faults and without fragmentation",
        "malloc keeps its defaults: steps are slower or need more memory",
    ),
    Effect(
        "host-pool",
        "ends the OpenMP threads that wait for the calling thread",
        "`Run.steps`, and before a fork",
        "the calling thread runs its next parallel kernel, which starts them again",
        "more OpenMP threads than cores make small kernels twice as slow; a forked child would "
        "wait for threads that it does not have",
        "the threads stay",
    ),
    Effect(
        "kernel-threads",
        "calls `torch.set_num_threads` in the threads of a run",
        "the threads of a run start",
        "they have started; the default of other threads is then restored",
        "kernels use the cores of their device, data loading uses one",
        "every kernel uses as many threads as torch would",
    ),
    Effect(
        "cores",
        "binds the threads of a run to cores (`sched_setaffinity`)",
        "the threads of a run on several CPU devices start",
        "the threads end; other threads are not bound",
        "devices do not compete for cores",
        "the system moves the threads between cores",
    ),
    Effect(
        "collector",
        "calls `gc.freeze`, unless the program has done so",
        "the threads of a run start",
        "the threads end; `gc.unfreeze` is then called",
        "a full collection looks at hundreds of thousands of objects of a graph, for 0.2 s in "
        "which all threads wait",
        "collections stop a run now and then",
    ),
    Effect(
        "gpu-math",
        "TF32 of `torch.backends.cuda.matmul` and `cudnn` as `Run(tf32=...)` says, and "
        "`cudnn.deterministic = True`",
        "a run with ops on GPUs has iterations in flight",
        "no iteration is in flight; the values of before are then restored",
        "a run computes the same bits whatever the program has set",
        "torch's settings hold; runs may differ in bits, and `tf32=True` is an error",
    ),
    Effect(
        "gpu-memory",
        "turns on `expandable_segments` of torch's CUDA allocator, unless "
        "`PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF` is set",
        "a compiled step is captured as a CUDA graph",
        "the capture ends",
        "segments of fixed sizes leave gaps that a captured graph keeps for good",
        "captured steps need more GPU memory",
    ),
    Effect(
        "compile-cache",
        "sets `TORCHINDUCTOR_CACHE_DIR` and `TRITON_CACHE_DIR` to folders in `PURINE_CACHE` "
        "(`~/.cache/purine`), unless they are set",
        "the first fused op is compiled",
        "the process ends",
        "compiled steps survive a restart: torch's own default is a temporary folder",
        "the compiler's own folders are used",
    ),
)
"""All effects, those of the import first."""

_NAMES = tuple(effect.name for effect in EFFECTS)


def applies(name: str) -> bool:
    """Whether the user has not declined an effect.

    >>> applies("heap")
    True
    """
    assert name in _NAMES
    unwanted = declined()
    for unknown in sorted(unwanted.difference(_NAMES)):
        raise unknown_name(ConfigError, "effect", unknown, _NAMES, where=VARIABLE)
    return name not in unwanted


def effects_table() -> str:
    """The effects as a table in Markdown, for the documentation.

    >>> print(effects_table().splitlines()[0])
    | name | what changes | when | until | why | when declined |
    """
    head = ("name", "what changes", "when", "until", "why", "when declined")
    rows = [head, ("---",) * len(head), *((f"`{e.name}`", *e[1:]) for e in EFFECTS)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
