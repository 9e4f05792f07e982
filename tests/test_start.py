"""What starting costs is not measured here but seen: which modules an import or a command loads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import pytest

import purine as pu
from purine.data.open import _NAMED
from purine.graph import save_yaml
from purine.job import names
from purine.job.options import OPTIONS
from purine.lowering import LOWERING
from purine.optimize.layout import Layout
from purine.registry.lookup import kinds

HEAVY = ("sympy", "torch", "torch._dynamo", "torch._inductor", "triton")


def loaded(code: str, environment: Mapping[str, str] | None = None) -> set[str]:
    """The modules that a fresh interpreter has loaded after this code."""
    tail = "\nimport json, sys; print(json.dumps(sorted(sys.modules)), file=sys.__stderr__)"
    done = subprocess.run(
        [sys.executable, "-c", code + tail],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return f"""
from purine.cli import main
try:
    main({list(arguments)!r})
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "arguments", [("--help",), ("train", "--help"), ("show", "--help"), ("--version",)]
)
def test_help_imports_no_torch(arguments: Sequence[str]) -> None:
    assert not loaded(command(*arguments)).intersection(HEAVY)


@pytest.mark.multiprocess
def test_completion_imports_no_torch() -> None:
    words = {"_PURINE_COMPLETE": "complete_bash", "COMP_WORDS": "purine train --net res"}
    environment = {**words, "COMP_CWORD": "3"}
    assert not loaded(command(), environment).intersection(HEAVY)
    done = subprocess.run(
        [sys.executable, "-m", "purine"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.stdout.split() == ["resnet50"]


def test_names_of_the_command_line_are_those_of_the_registries() -> None:
    assert tuple(pu.zoo.NETS) == names.NETS
    assert sorted(names.SOLVERS) == sorted(pu.solvers.SOLVERS)
    assert sorted(names.POLICIES) == sorted(pu.solvers.POLICIES)
    assert tuple(_NAMED) == names.DATA
    assert OPTIONS["layout"].annotation == Layout
    assert tuple(item.name for item in LOWERING) == names.PASSES


@pytest.mark.multiprocess
def test_importing_purine_leaves_the_compiler_out() -> None:
    assert not loaded("import purine").intersection(HEAVY)
    everyday = "import purine as pu; pu.Run, pu.zoo, pu.data, pu.solvers, pu.backward, pu.parallel"
    assert loaded(everyday).intersection(HEAVY) == {"torch"}


@pytest.mark.multiprocess
def test_checking_a_small_net_leaves_the_compiler_out(tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    save_yaml(pu.zoo.lenet(batch=4), net)
    assert loaded(command("check", str(net))).intersection(HEAVY) == {"torch"}


def test_every_public_name_has_a_home() -> None:
    assert sorted({*pu._HOMES, *pu._PACKAGES}) == pu.__all__
    for name, home in pu._HOMES.items():
        assert name in import_module(home).__all__, name
        assert getattr(pu, name) is getattr(import_module(home), name)
    assert set(pu.__all__) <= set(dir(pu))
    with pytest.raises(AttributeError, match="has no attribute 'bakcward'"):
        pu.bakcward  # noqa: B018


@pytest.mark.multiprocess
def test_kinds_of_graph_files_are_registered_by_the_ops_alone() -> None:
    """A file may name any kind; kinds of the runtime stand in graphs that it makes itself."""
    code = """
import json, sys
import purine.kinds
from purine.registry.lookup import kinds
assert not any(name.startswith(("purine.runtime", "purine.solvers")) for name in sys.modules)
print(json.dumps(sorted(kinds())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import_module("purine.job.training")  # everything else
    of_files = {
        name
        for name, kind in kinds().items()
        if kind.function is not None or name in ("Data", "Round")
    }
    mine = {name for name in of_files if not kinds()[name].function or "purine" in _module(name)}
    assert set(json.loads(done.stdout)) == mine


def _module(kind: str) -> str:
    return str(getattr(kinds()[kind].function, "__module__", "purine"))


def spins(**environment: str) -> str:
    """How often threads look for work before they sleep, as the OpenMP library tells."""
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    done = subprocess.run(
        [sys.executable, "-c", "import purine; import torch"],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"GOMP_SPINCOUNT = '([^']*)'", done.stderr)
    if found is None:
        pytest.skip("this torch does not come with GNU OpenMP")
    return found[1]


@pytest.mark.multiprocess
def test_threads_spin_for_a_bounded_time_unless_the_user_says_otherwise() -> None:
    assert spins() == "4000"
    assert spins(GOMP_SPINCOUNT="77") == "77"
    assert spins(OMP_WAIT_POLICY="PASSIVE") == "0"
