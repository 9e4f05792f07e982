"""Every kind that the code base names exists, and is spelled in the one way that graphs have.

A table with a name that no op ever has is a transform that does nothing, without a word. So the
source itself is read: every text that looks like an ATen kind, and everything that an op's kind is
compared with or looked up in.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import torch

import purine
from purine.analysis.infer import complete
from purine.graph import from_yaml
from purine.parallel import _shard_rules
from purine.registry import aten, sized
from purine.registry.facts import ShardRule
from purine.registry.lookup import kinds

SOURCES = sorted(Path(purine.__file__).parent.rglob("*.py"))
ATEN = re.compile(r"(?:sized\.)?(?:aten|mkldnn)\.[a-z_]\w*(?:\.[A-Za-z_]\w*)?")

PACKETS = {
    "purine/importers/torch/modes.py": {"aten.native_dropout", "aten._native_batch_norm"},
}
"""Names that stand for all kinds that begin with them."""

NO_KINDS = {
    "purine/registry/fillers.py",  # kinds of fillers
    "purine/importers/caffe/sources.py",
    "purine/data/arrays.py",  # kinds of numpy's dtypes
    "purine/data/hdf5.py",
}

TABLES = {
    "purine.graph.nodes": ["COLLECTIVES"],
    "purine.importers.torch.graph": ["_DROPLESS", "_SPECIAL"],
    "purine.importers.torch.sizes": ["_SIZELESS"],
    "purine.kinds.packed_filters": ["_FILTERS"],
    "purine.registry.aten_facts": ["OVERLOADS"],
    "purine.registry.gradient": ["RULES"],
    "purine.optimize.fuse": ["_APART"],
    "purine.parallel.batch_norm": ["_PER_SAMPLE"],
    "purine.parallel.hybrid": ["_FULL"],
    "purine.trace.gaps": ["_TRANSFER_KINDS"],
}
"""The tables of kinds by module."""

TABLES_OF_OPERATORS = {
    "purine.registry.aten_facts": ["OPERATORS"],
}
"""The tables in which an ATen name stands for all overloads of an operator."""


def exists(name: str) -> bool:
    if name.startswith("purine."):  # operators of ours, which the importer meets
        return hasattr(torch.ops.purine, name.removeprefix("purine."))
    if name.startswith("transformers."):  # those of a library that need not be there
        return True
    return name in kinds() or aten.kind_of(name) is not None or sized.kind_of(name) is not None


def test_a_default_overload_has_one_spelling() -> None:
    assert aten.canonical("sized.aten.relu.default") == "sized.aten.relu"
    for name in ("aten.relu", "aten.add.Tensor", "Relu"):
        assert aten.canonical(name) == name


@pytest.mark.parametrize("module", TABLES)
def test_tables_name_kinds_that_graphs_have(module: str) -> None:
    importlib.import_module("purine.solvers")
    for table in TABLES[module]:
        names: Collection[str] = getattr(importlib.import_module(module), table)
        for name in names:
            assert aten.canonical(name) == name, (table, name)
            assert exists(name), (table, name)


def test_every_sharding_class_has_a_rule() -> None:
    rules = _shard_rules
    assert {*ShardRule} == {*rules._FOLLOW, *rules._FOLLOW_FIRST, *rules._WEIGHTED}


def test_keys_of_kernels_are_kinds_too() -> None:
    for name, device in aten.KERNELS:
        assert aten.canonical(name) == name
        assert exists(name), name
        assert device in ("cpu", "cuda")


@pytest.mark.parametrize("module", TABLES_OF_OPERATORS)
def test_tables_of_operators_name_operators(module: str) -> None:
    for table in TABLES_OF_OPERATORS[module]:
        for name in getattr(importlib.import_module(module), table):
            space, _, operator = name.partition(".")
            if space == "aten":
                assert "." not in operator, (table, name)
                assert hasattr(torch.ops.aten, operator), (table, name)
            else:
                assert exists(name), (table, name)


def test_texts_that_look_like_kinds_are_kinds() -> None:
    wrong = []
    for file in SOURCES:
        name = str(file.relative_to(Path(purine.__file__).parents[1]))
        for node in ast.walk(ast.parse(file.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(text, str) or not ATEN.fullmatch(text):
                continue
            if text not in PACKETS.get(name, ()) and (
                not exists(text) or aten.canonical(text) != text
            ):
                wrong.append(f"{name}:{node.lineno}: {text}")
    assert not wrong


def test_kinds_of_ops_are_compared_with_kinds() -> None:
    importlib.import_module("purine.solvers")
    wrong = []
    for file in SOURCES:
        name = str(file.relative_to(Path(purine.__file__).parents[1]))
        if name in NO_KINDS:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            for text in compared(node):
                if not exists(text):
                    wrong.append(f"{name}:{node.lineno}: {text}")  # type: ignore[attr-defined]
    assert not wrong


def compared(node: ast.AST) -> Iterator[str]:
    """The texts that a comparison compares the kind of an op with."""
    if not isinstance(node, ast.Compare):
        return
    if not (isinstance(node.left, ast.Attribute) and node.left.attr == "kind"):
        return
    for part in node.comparators:
        for item in ast.walk(part):
            if isinstance(item, ast.Constant) and isinstance(item.value, str):
                yield item.value


def test_a_spelled_out_default_is_read_as_the_same_kind() -> None:
    text = """
- {type: blob, name: x, size: [2, 3]}
- {type: op, op_type: aten.relu.default, name: relu1, inputs: [x], outputs: [y]}
"""
    assert complete(from_yaml(text)).ops["relu1"].kind == "aten.relu"
