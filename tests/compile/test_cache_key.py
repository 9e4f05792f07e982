"""The key of the cache changes with the code that compiled steps depend on, and not with words."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.compile.cache_key import code_hash, own_code, own_files

KERNEL = '''
"""A kernel."""
_BLOCK = 128
"""Elements of a block."""


def kernel(x):
    """Double x."""
    return 2 * x  # in place of x + x
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        pytest.param("A kernel.", "A fast kernel.", True, id="docstring of the module"),
        pytest.param("Elements of a block.", "Block size.", True, id="docstring of a constant"),
        pytest.param('    """Double x."""\n', "", True, id="docstring of a function"),
        pytest.param("  # in place of x + x", "", True, id="comment"),
        pytest.param("\n\n\n", "\n\n\n\n", True, id="empty lines"),
        pytest.param("2 * x", "3 * x", False, id="code"),
        pytest.param("128", "256", False, id="constant"),
    ],
)
def test_edits(old: str, new: str, same: bool, tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL, encoding="utf-8")
    before = code_hash([path])
    assert old in KERNEL
    path.write_text(KERNEL.replace(old, new), encoding="utf-8")
    assert (code_hash([path]) == before) is same


def test_the_key_covers_kernels_rewrites_and_kinds_with_ops_of_our_own() -> None:
    names = {f"{path.parent.name}/{path.name}" for path in own_files()}
    expected = {"kernels/sums.py", "rewrites/sums.py", "compile/inductor.py", "kinds/add_at.py"}
    assert names >= expected
    assert names.isdisjoint({"kinds/pool.py", "compile/script.py", "registry/kind.py"})
    assert own_code() == code_hash(own_files())
