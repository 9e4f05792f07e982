"""The text format of protocol buffers, and the check of fields."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purine.errors import FormatError, PurineError
from purine.importers.caffe.imported import from_caffe
from purine.importers.caffe.schema import read
from purine.importers.caffe.text import Message, Token, parse
from tests.importers.mutations import mutated, nets


def values(message: Message) -> list[object]:
    return [
        (entry.name, entry.value.text if isinstance(entry.value, Token) else values(entry.value))
        for entry in message.entries
    ]


@pytest.mark.parametrize(
    "text",
    [
        'a { b: 1 c: "x" }',
        "a: { b: 1, c: 'x', }",
        "a < b: 1; c: 'x'; >",
        "a{b:1#comment } \n c: 'x' # }\n}",
        "a { b: [1] c: \"\" 'x' }",
    ],
)
def test_all_spellings_of_a_message_are_the_same(text):
    assert values(parse(text)) == [("a", [("b", "1"), ("c", "x")])]


def test_escapes():
    found = parse(r'a: "\n\t\\\"\'\x41\101"').entries[0].value
    assert isinstance(found, Token)
    assert found.text == "\n\t\\\"'AA"


def test_lines_are_those_of_the_fields():
    message = parse("\n# first\na: 1\nb {\n  c: 2\n\n}\n")
    assert [entry.line for entry in message.entries] == [3, 4]
    inner = message.entries[1].value
    assert isinstance(inner, Message)
    assert inner.entries[0].line == 5


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a: 1\nb {", 2, "'}' for what line 2 opens"),
        ("a {\n}\n}", 3, "the name of a field"),
        ("a\n1", 2, "':' or '{' after 'a'"),
        ('\na: "b', 2, "a closing quote on the same line"),
        ("a: @", 1, "a field or a value"),
        ("a: 1abc", 1, "a field or a value"),
        ("a: [1 2]", 1, "',' or ']'"),
        ("a: }", 1, "a value"),
        ('a: "\\q"', 1, "an escape such as \\n"),
        ("a {" * 100, 1, "at most 32 levels of messages"),
        (f"a: {'1' * 1000}", 1, "at most 400 digits"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text, line, expected):
    with pytest.raises(FormatError) as caught:
        parse(text, file="net.prototxt")
    assert caught.value.where == f"net.prototxt:{line}"
    assert caught.value.expected == expected


def test_numbers():
    text = "base_lr: 1e-4 gamma: .5f power: inf momentum: 0x10 max_iter: 0x1F stepsize: 010"
    node = read(text, "SolverParameter")
    found = [node.get(n) for n in ("base_lr", "gamma", "power", "momentum", "max_iter", "stepsize")]
    assert found == [1e-4, 0.5, math.inf, 16.0, 31, 8]


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("layer {\n nmae: 'x' }", 2, "did you mean 'name'?"),
        ("layer {\n pooling_param {\n pool: MEX } }", 3, "did you mean MAX?"),
        ("layer {\n convolution_param {\n num_output: -1 } }", 3, "change num_output"),
        ("layer {\n convolution_param {\n num_output: 1.5 } }", 3, "change num_output"),
        ("layer {\n\n name: x }", 3, "change name"),
        ("layer: 3", 1, "change layer"),
        ("name {}", 1, "change name"),
        ("name: 'a'\nname: 'b'", 2, "remove one of them"),
        ("layers { type: 40 }", 1, "change type"),
    ],
)
def test_fields_are_checked_with_their_line(text, line, remedy):
    with pytest.raises(FormatError) as caught:
        read(text, "NetParameter", file="net.prototxt")
    assert caught.value.where == f"net.prototxt:{line}"
    assert caught.value.remedy == remedy


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:{}<>[]\"'\\\n#1.e-x ,;", max_size=40))
def test_any_text_is_a_message_or_an_error_of_ours(text):
    with suppress(PurineError):
        parse(text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_damaged_nets_are_a_graph_or_an_error_of_ours(tmp_path_factory, seed):
    path = tmp_path_factory.getbasetemp() / "net.prototxt"
    text, sizes = nets()[seed % len(nets())]
    path.write_text(mutated(text, seed), encoding="utf-8")
    with suppress(PurineError):
        from_caffe(path, **sizes)


def test_enums_may_be_written_as_numbers():
    text = "layers { type: 14 loss_weight: 1 } layers { type: 39 } layers { type: 1 }"
    node = read(text, "NetParameter")
    types = [layer.get("type") for layer in node.all("layers")]
    assert types == ["INNER_PRODUCT", "DECONVOLUTION", "ACCURACY"]
    solver = read("solver_mode: 0 solver_type: 1 snapshot_format: 0", "SolverParameter")
    assert (solver.get("solver_mode"), solver.get("solver_type")) == ("CPU", "NESTEROV")
