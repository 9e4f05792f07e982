import math
import time
from pathlib import Path

import pytest
import yaml as pyyaml
from hypothesis import given, settings
from hypothesis import strategies as st

from purine.errors import FormatError, GraphError, PurineError
from purine.graph import (
    CHANNELS_LAST,
    NOTHING,
    Attribute,
    Blob,
    Builder,
    Filler,
    Graph,
    Location,
    Op,
    State,
    from_yaml,
    load_yaml,
    save_yaml,
    to_yaml,
    verify,
)
from purine.graph.yaml import nodes as yaml_nodes
from purine.graph.yaml.read import OP_KEYS

TEXT = """\
- {type: blob, name: bottom, size: [8, 3, 227, 227]}
- {type: blob, name: weight, size: [96, 3, 11, 11], location: {ip: 10.0.0.2, device: cuda:1}}
- {type: blob, name: weight_next, size: [96, 3, 11, 11], dtype: bfloat16}
- {type: blob, name: top}
- {type: blob, name: loss, size: []}
- {type: op, op_type: Conv, name: conv1, inputs: [bottom, weight], outputs: [top], stride: 4, \
pad: [1, 2], bias: true, \
eps: 1.0e-05, note: "no", location: {ip: 127.0.0.1, device: cpu:1}, thread: 1}
- {type: op, op_type: aten.max_pool2d, name: pool/1, inputs: [top], outputs: [~, loss], \
ceil: ~, thread: io}
- {type: state, blob: weight, next: weight_next, filler: {type: xavier, variance: fan_in}, \
trainable: true, lr_mult: 2.0, decay_mult: 0.0}
- {type: state, blob: bottom}
- {type: control, before: conv1, after: pool/1}
- {type: output, blob: loss}
"""

POSTER = """
- type: blob
  name: bottom
  size: [8, 3, 227, 227]
- type: blob
  name: weight
  size: [96, 3, 11, 11]
  location:
    ip: 127.0.0.1
    device: 0
- type: op
  op_type: Conv
  name: conv1
  inputs: [ bottom, weight ]
  outputs: [ top ]
  location:
    ip: 127.0.0.1
    device: 0
  thread: 1
"""


def rich() -> Graph:
    b = Builder()
    b.blob("bottom", (8, 3, 227, 227))
    b.blob("weight", (96, 3, 11, 11), location=Location("10.0.0.2", "cuda:1"))
    b.blob("weight_next", (96, 3, 11, 11), "bfloat16")
    b.blob("top", None)
    b.blob("loss", ())
    attributes: dict[str, Attribute] = {"stride": 4, "pad": (1, 2), "bias": True, "eps": 1e-5}
    b.op(
        "conv1",
        "Conv",
        ["bottom", "weight"],
        ["top"],
        attributes | {"note": "no"},
        location=Location(device="cpu:1"),
        lane="compute:1",
    )
    b.op("pool/1", "aten.max_pool2d", ["top"], [NOTHING, "loss"], {"ceil": None}, lane="io")
    filler = Filler("xavier", {"variance": "fan_in"})
    b.state("weight", "weight_next", filler, trainable=True, lr_mult=2.0, decay_mult=0.0)
    b.state("bottom")
    b.control.add(("conv1", "pool/1"))
    b.outputs = ["loss"]
    return b.graph()


def test_golden_both_ways() -> None:
    assert to_yaml(rich()) == TEXT
    assert from_yaml(TEXT) == rich()
    assert from_yaml(TEXT).digest == rich().digest


def test_a_layout_is_written_where_there_is_one() -> None:
    text = "- {type: blob, name: w, size: [8, 3, 5, 5], layout: channels-last}\n"
    assert from_yaml(text).blobs["w"] == Blob("w", (8, 3, 5, 5), layout=CHANNELS_LAST)
    assert to_yaml(from_yaml(text)).startswith(text)
    assert "layout" not in to_yaml(rich())


VERSIONS = """\
- {type: blob, name: w, size: []}
- {type: blob, name: w/next, size: []}
- {type: blob, name: v, size: []}
- {type: op, op_type: Add, name: a, inputs: [w], outputs: [w/next], every: 4, phase: 1, worker: 2}
- {type: state, blob: w, next: w/next, staleness: any, shared: fc1/weight}
- {type: state, blob: v, staleness: 3}
"""


def test_workers_periods_and_versions_go_both_ways() -> None:
    graph = from_yaml(VERSIONS)
    op, w, v = graph.ops["a"], graph.states["w"], graph.states["v"]
    assert (op.every, op.phase, op.worker) == (4, 1, 2)
    assert (w.staleness, w.shared, v.staleness, v.shared) == (None, "fc1/weight", 3, "")
    assert from_yaml(to_yaml(graph)) == graph
    for line in VERSIONS.splitlines():
        assert line in to_yaml(graph).splitlines()


@pytest.mark.parametrize("value", ["true", "1.5", "often", "[1]"])
@pytest.mark.parametrize("key", ["every", "staleness"])
def test_counts_are_whole_numbers(key: str, value: str) -> None:
    text = VERSIONS.replace("every: 4" if key == "every" else "staleness: 3", f"{key}: {value}")
    with pytest.raises(FormatError, match=f"{key!r} that is no whole number"):
        from_yaml(text)


def test_the_posters_entries_load() -> None:
    graph = verify(from_yaml(POSTER, file="poster.yaml"))
    assert graph.blobs["weight"] == Blob("weight", (96, 3, 11, 11))
    assert graph.ops["conv1"] == Op(
        "conv1", "Conv", ("bottom", "weight"), ("top",), lane="compute:1"
    )
    assert graph.blobs["top"] == Blob("top", None)
    assert graph.outputs == ("top",)


def test_every_node_knows_its_line() -> None:
    graph = from_yaml(POSTER + "- {type: state, blob: weight}\n", file="poster.yaml")
    assert graph.blobs["bottom"].where == "poster.yaml:2"
    assert graph.blobs["weight"].where == "poster.yaml:5"
    assert graph.ops["conv1"].where == "poster.yaml:11"
    assert graph.blobs["top"].where == "poster.yaml:11"
    assert graph.states["weight"].where == "poster.yaml:20"


@pytest.mark.parametrize(
    ("thread", "lane"),
    [("0", "compute"), ("2", "compute:2"), ("compute:3", "compute:3"), ("inbound", "inbound")],
)
def test_threads_are_lanes(thread: str, lane: str) -> None:
    text = f"- {{type: op, op_type: A, name: a, inputs: [], outputs: [], thread: {thread}}}"
    assert from_yaml(text).ops["a"].lane == lane


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("{}", Location()),
        ("{device: 3}", Location(device="cpu:3")),
        ("{device: cuda:1}", Location(device="cuda:1")),
        ("{ip: node7}", Location("node7")),
    ],
)
def test_locations(location: str, expected: Location) -> None:
    text = f"- {{type: blob, name: x, size: [1], location: {location}}}"
    assert from_yaml(text).blobs["x"].location == expected


def test_undeclared_outputs_live_where_their_op_does() -> None:
    text = "- {type: op, op_type: A, name: a, inputs: [], outputs: [y], location: {device: 2}}"
    assert from_yaml(text).blobs == {"y": Blob("y", None, location=Location(device="cpu:2"))}


def test_no_outputs_are_not_the_same_as_all_sinks() -> None:
    b = Builder()
    b.blob("lonely", (1,))
    assert from_yaml(to_yaml(b.graph())).outputs == ()
    assert from_yaml("- {type: blob, name: lonely, size: [1]}").outputs == ("lonely",)


def test_an_empty_graph() -> None:
    assert to_yaml(Graph()) == "[]\n"
    assert from_yaml("[]\n") == Graph()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("2.", 2.0),
        ("-.inf", -math.inf),
        ("0x10", 16),
        ("-7", -7),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("'no'", "no"),
        ("!!str 12", "12"),
        ("1.2.3", "1.2.3"),
        ("2020-01-02", "2020-01-02"),
        ("word", "word"),
        ("[1, [a, 2.5], []]", (1, ("a", 2.5), ())),
    ],
)
def test_values(text: str, value: Attribute) -> None:
    entry = f"- type: op\n  op_type: A\n  name: a\n  inputs: []\n  outputs: []\n  v: {text}\n"
    found = from_yaml(entry).ops["a"].attributes["v"]
    assert (type(found), found) == (type(value), value)


def test_anchors_and_aliases() -> None:
    graph = from_yaml(
        "- {type: blob, name: x, size: &s [2, 3], location: &l {device: 1}}\n"
        "- {type: blob, name: y, size: *s, location: *l}\n"
    )
    assert graph.blobs["y"] == Blob("y", (2, 3), location=Location(device="cpu:1"))


names = st.one_of(
    st.sampled_from(
        ["x", "y", "no", "Null", "1", "1e5", "1:30", "a/b.c:0", "~", "-", "0x1f", "=", "<<"]
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), names, st.just("")
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
keys = names.filter(lambda key: key not in OP_KEYS)
attributes = st.dictionaries(keys, values, max_size=3)
locations = st.builds(Location, names, st.sampled_from(["cpu:0", "cpu:1", "cuda:12"]))
shapes = st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple)
lanes = st.sampled_from(["compute", "compute:1", "compute:23", "io", "inbound", "outbound"])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    blobs = [
        Blob(
            name,
            draw(shapes),
            draw(st.sampled_from(["float32", "int64"])),
            draw(locations),
            layout=draw(st.sampled_from(["", CHANNELS_LAST])),
        )
        for name in draw(st.lists(names, max_size=5, unique=True))
    ]
    declared = st.sampled_from([blob.name for blob in blobs]) if blobs else st.nothing()
    written = st.lists(declared | st.just(NOTHING), max_size=2).map(tuple)
    ops = [
        Op(
            name,
            draw(names),
            draw(st.lists(names, max_size=3).map(tuple)),
            draw(written),
            draw(attributes),
            draw(locations),
            draw(lanes),
            every=draw(st.integers(1, 9)),
            phase=draw(st.integers(0, 8)),
            worker=draw(st.integers(0, 3)),
        )
        for name in draw(st.lists(names, max_size=4, unique=True))
    ]
    fillers = st.builds(Filler, names, attributes)
    multipliers = st.floats(allow_nan=False)
    states = [
        State(
            read,
            draw(names),
            draw(fillers),
            draw(st.booleans()),
            draw(multipliers),
            draw(multipliers),
            staleness=draw(st.none() | st.integers(0, 9)),
            shared=draw(names | st.just("")),
        )
        for read in draw(st.lists(names, max_size=2, unique=True))
    ]
    return Graph(
        {blob.name: blob for blob in blobs},
        {op.name: op for op in ops},
        {state.read: state for state in states},
        frozenset(draw(st.lists(st.tuples(names, names), max_size=2))),
        tuple(draw(st.lists(names, max_size=2))),
    )


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_round_trip(graph: Graph) -> None:
    text = to_yaml(graph)
    again = from_yaml(text)
    assert again == graph
    assert again.digest == graph.digest
    assert list(again.ops) == list(graph.ops)
    assert text.count("\n") == len(text.splitlines())
    # Another reader of YAML sees the same values.
    for entry, op in zip(
        [e for e in pyyaml.safe_load(text) if e["type"] == "op"], graph.ops.values(), strict=True
    ):
        assert all(entry[key] == _listed(value) for key, value in op.attributes.items())


def _listed(value: Attribute) -> object:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def test_nan_goes_both_ways() -> None:
    b = Builder()
    b.op("a", "A", [], [], {"v": math.nan})
    value = from_yaml(to_yaml(b.graph())).ops["a"].attributes["v"]
    assert isinstance(value, float)
    assert math.isnan(value)


OP = "type: op, op_type: A, name: a, inputs: [], outputs: []"


def blob(rest: str) -> str:
    return f"- {{type: blob, name: x, {rest}}}"


def op(rest: str) -> str:
    return f"- {{{OP}, {rest}}}"


def wired(inputs: str, outputs: str) -> str:
    return f"- {{type: op, op_type: A, name: a, inputs: {inputs}, outputs: {outputs}}}"


def state(rest: str) -> str:
    return f"- {{type: state, blob: x, {rest}}}"


MISTAKES = [
    # text, line, what, expected, found, remedy (each as a part of the message)
    ("", "1", "the text is empty", "a list of entries", "nothing", "[]"),
    ("# a comment\n", "1", "the text is empty", "a list of entries", "nothing", "[]"),
    ("---\n", "2", "a graph is a list", "a list", "null", "'- '"),
    ("a: 1\n", "1", "a graph is a list", "a list", "a mapping", "'- '"),
    ("\nhello\n", "2", "a graph is a list", "a list", "the text 'hello'", "'- '"),
    ("- [1, 2]\n", "1", "an entry is not a mapping", "a mapping", "a list", "{key"),
    ("- {name: x}\n", "1", "an entry has no 'type'", "'type'", "the keys name", "add 'type'"),
    ("- {}\n", "1", "an entry has no 'type'", "'type'", "no keys", "add 'type'"),
    ("- {type: bolb}\n", "1", "'bolb' is no type of entry", "blob, op", "'bolb'", "'blob'?"),
    ("- {type: zzz}\n", "1", "'zzz' is no type of entry", "blob, op", "'zzz'", "correct"),
    ("- {type: 3}\n", "1", "'type' that is not text", "text", "integer 3", "quote it"),
    ("- {type: blob}\n", "1", "a blob entry has no 'name'", "'name'", "type", "add"),
    ("- {type: blob, name: 7}\n", "1", "'name' that is not text", "text", "integer 7", "quote it"),
    ("- {type: blob, name: ''}\n", "1", "'name' that is empty", "one character", "''", "correct"),
    ("- {type: blob, name: no}\n", "1", "do not agree on what no", "true or false", "no", "quote"),
    ("- {type: blob, name: 1_0}\n", "1", "do not agree on what 1_0", "decimal", "1_0", "quote"),
    ("- {type: blob, name: 010}\n", "1", "do not agree on what 010", "decimal", "010", "quote"),
    ("- {type: blob, name: 1:30}\n", "1", "do not agree on", "decimal", "1:30", "quote"),
    ("- type: blob\n  name: x\n  size: abc\n", "3", "'size' that is not", "list", "abc", "["),
    (blob("size: [1, -2]"), "1", "'size'", "from 0", "integer -2", "correct"),
    (blob("size: [1, true]"), "1", "'size'", "from 0", "true", "correct"),
    (blob("size: [1.0]"), "1", "'size'", "from 0", "float 1.0", "correct"),
    (blob("size: [[1]]"), "1", "'size'", "from 0", "a list", "correct"),
    (blob("layout: 4"), "1", "'layout' that is not text", "text", "integer 4", "quote it"),
    (blob("layot: x"), "1", "'layot' is no key", "layout", "layot", "'layout'?"),
    (blob("size: ~"), "1", "'size' that is not a list", "list", "null", "["),
    ("- type: blob\n  name: x\n  sise: [1]\n", "3", "'sise' is no key", "size", "sise", "'size'?"),
    (blob("name: y"), "1", "has the key 'name' twice", "once", "'name'", "remove"),
    ("- {type: blob, 3: x}", "1", "has a key that is not text", "text", "integer 3", "quote it"),
    (blob("location: 3"), "1", "a location is not a mapping", "map", "3", "{key"),
    (blob("location: {port: 3}"), "1", "'port' is no key", "ip", "port", "port"),
    (blob("location: {device: gpu}"), "1", "wrong 'device'", "cpu:K", "gpu", "cpu:0"),
    (blob("location: {device: -1}"), "1", "wrong 'device'", "cpu:K", "-1", "cpu:0"),
    (blob("location: {device: true}"), "1", "wrong 'device'", "cpu:K", "true", "cpu:0"),
    (blob("location: {ip: 1}"), "1", "'ip' that is not text", "text", "1", "quote"),
    ("- {type: op, name: a}", "1", "an op entry has no 'op_type'", "op_type", "name", "add"),
    ("- {type: op, op_type: A, name: a}", "1", "entry has no 'inputs'", "inputs", "name", "add"),
    (wired("x", "[]"), "1", "'inputs' that is not a list", "list", "'x'", "[a]"),
    (wired("[~]", "[]"), "1", "'inputs' that is not text", "text", "null", "quote"),
    (wired("[]", "[1]"), "1", "'outputs' that is not text", "text", "1", "quote"),
    (op("thread: -1"), "1", "wrong 'thread'", "compute:K", "integer -1", "leave"),
    (op("thread: gpu"), "1", "wrong 'thread'", "compute:K", "'gpu'", "leave"),
    (op("thread: [1]"), "1", "wrong 'thread'", "compute:K", "a list", "leave"),
    (op("\n   v: {a: 1}"), "2", "'v' that is not a value", "number", "a mapping", "correct"),
    (op("\n   v: [1, {a: 1}]"), "2", "'v' that is not a value", "number", "a mapping", "correct"),
    (op("v: yes"), "1", "do not agree on what yes", "true", "yes", "quote"),
    (op("v: 1e999"), "1", "too large", ".inf", "1e999", "smaller"),
    (op(f"v: {'9' * 5000}"), "1", "too large", "fits", "999...", "smaller"),
    (op(f"v: {'9' * 400}"), "1", "too large", "fits", "999...", "smaller"),
    (op(f"v: 1{':30' * 400}"), "1", "do not agree on", "decimal", "...", "quote"),
    (op("v: !!python/name:os.system ''"), "1", "has a tag", "no tag", "os.system", "remove"),
    (op("v: &a [*a]"), "1", "alias *a stands for nothing", "anchor", "contains", "write"),
    (op("v: *b"), "1", "alias *b stands for nothing", "anchor", "no &b", "write"),
    ("- {type: state, next: x}", "1", "a state entry has no 'blob'", "blob", "next", "add"),
    (state("trainable: 1"), "1", "'trainable' that is neither", "true", "1", "correct"),
    (state("lr_mult: fast"), "1", "'lr_mult' that is not a number", "number", "fast", "correct"),
    (state("lr_mult: true"), "1", "'lr_mult' that is not a number", "number", "true", "correct"),
    (state("lr: 1"), "1", "'lr' is no key of a state entry", "lr_mult", "'lr'", "lr"),
    (state("filler: xavier"), "1", "a filler is not a mapping", "map", "xavier", "{key"),
    (state("filler: {value: 1}"), "1", "a filler has no 'type'", "type", "value", "add"),
    ("- {type: control, before: a}", "1", "control entry has no 'after'", "after", "before", "add"),
    ("- {type: output}", "1", "an output entry has no 'blob'", "blob", "type", "add"),
    ("- {type: output, blob: x, size: [1]}", "1", "'size' is no key", "blob", "size", "size"),
    ("[]\n---\n[]\n", "2", "the text goes on", "one document", "second document", "join"),
    ("- {type: blob\n- [", "2:3", "the text is not YAML", "YAML", "expected ',' or '}'", "column"),
    ("- a: b: c\n", "1:7", "the text is not YAML", "YAML", "not allowed", "column"),
    ("\n- \x00", "2", "a character that YAML does not allow", "printable", "U+0000", "remove"),
    ("- \ud800", "1", "a character that YAML does not allow", "printable", "U+D800", "remove"),
    ("\x7fELF\x02", "1", "a character that YAML does not allow", "printable", "U+007F", "remove"),
    (op(f"v: {'[' * 200}{']' * 200}"), "1", "nested too deeply", "64", "more", "flatter"),
    ("[" * 200_000, "1", "nested too deeply", "64", "more", "flatter"),
    ("- " * 200_000, "1", "nested too deeply", "64", "more", "flatter"),
    ("{a: " * 200_000, "1", "nested too deeply", "64", "more", "flatter"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "what", "expected", "found", "remedy"),
    MISTAKES,
    ids=[f"{number}-{mistake[2][:30]}" for number, mistake in enumerate(MISTAKES)],
)
def test_mistakes_are_told_with_their_line(
    text: str, line: str, what: str, expected: str, found: str, remedy: str
) -> None:
    with pytest.raises(FormatError) as caught:
        from_yaml(text, file="net.yaml")
    error = caught.value
    assert error.where == f"net.yaml:{line}"
    assert what in error.what
    assert expected in (error.expected or "")
    assert found in (error.found or "")
    assert remedy in (error.remedy or "")
    assert len(str(error)) < 600


def test_aliases_cannot_multiply() -> None:
    lines = [f"- {{{OP}, v: &l0 [x, x, x, x, x, x, x, x, x, x]}}"]
    for level in range(1, 12):
        stars = ", ".join([f"*l{level - 1}"] * 10)
        lines.append(f"- {{{OP.replace('name: a', f'name: a{level}')}, v: &l{level} [{stars}]}}")
    with pytest.raises(FormatError, match="stands for too much") as caught:
        from_yaml("\n".join(lines), file="net.yaml")
    assert caught.value.where == "net.yaml:4"


def test_aliases_are_counted_together() -> None:
    values = [f"&many [{', '.join('x' * 999)}]", f"[{', '.join(['*many'] * 99)}]", "*many", "*many"]
    ops = [OP.replace("name: a", f"name: a{number}") for number in range(4)]
    lines = [f"- {{{op}, v: {value}}}" for op, value in zip(ops, values, strict=True)]
    with pytest.raises(FormatError, match="stands for too much") as caught:
        from_yaml("\n".join(lines), file="net.yaml")
    assert caught.value.where == "net.yaml:4"


def test_two_nodes_of_one_name() -> None:
    with pytest.raises(GraphError, match="blob 'x' is declared twice") as caught:
        from_yaml("- {type: blob, name: x}\n- {type: blob, name: x}\n", file="net.yaml")
    assert caught.value.where == "net.yaml:2"
    assert "net.yaml:1" in str(caught.value)


def test_what_yaml_cannot_tell_is_refused_when_writing() -> None:
    b = Builder()
    b.op("a", "A", [], [], {"name": 1}, where="net.yaml:3")
    with pytest.raises(GraphError, match=r"net.yaml:3: op 'a' has an attribute 'name'"):
        to_yaml(b.graph())
    b = Builder()
    b.state("w", None, Filler("xavier", {"type": 1}))
    with pytest.raises(GraphError, match="filler of state 'w' has an attribute 'type'"):
        to_yaml(b.graph())
    b = Builder()
    b.blob("\ud800", (1,))
    with pytest.raises(FormatError, match="cannot be written"):
        to_yaml(b.graph())


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "nét.yaml"
    save_yaml(Graph(), path)
    save_yaml(rich(), path)
    assert path.read_text(encoding="utf-8") == TEXT
    graph = load_yaml(path)
    assert graph == rich()
    assert graph.blobs["weight"].where == f"{path}:2"
    assert list(tmp_path.iterdir()) == [path]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert load_yaml(path) == rich()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text("old")
    b = Builder()
    b.op("a", "A", [], [], {"name": 1})
    with pytest.raises(GraphError):
        save_yaml(b.graph(), path)
    assert path.read_text() == "old"
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(FormatError, match="cannot write the graph"):
        save_yaml(Graph(), target)
    assert sorted(tmp_path.iterdir()) == [target, path]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(FormatError, match="cannot read the graph") as caught:
        load_yaml(missing)
    assert (caught.value.where, caught.value.found) == (str(missing), "No such file or directory")
    with pytest.raises(FormatError, match="cannot read the graph") as caught:
        load_yaml(tmp_path)
    assert caught.value.found == "Is a directory"
    with pytest.raises(FormatError, match="cannot read the graph"):
        load_yaml("a\0b")
    with pytest.raises(FormatError, match="cannot write the graph"):
        save_yaml(Graph(), tmp_path / "missing" / "net.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"[]\n# caf\xe9\n")
    with pytest.raises(FormatError, match="is not UTF-8 text") as caught:
        load_yaml(latin)
    assert caught.value.where == f"{latin}:2"
    assert caught.value.found == "the byte 0xe9 at offset 8"


def test_the_loader_without_libyaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_nodes, "_Loader", pyyaml.SafeLoader)
    assert from_yaml(TEXT) == rich()
    for text in ("[" * 5000, '- "\\U00110000"', "- {a: b"):
        with pytest.raises(FormatError):
            from_yaml(text)


pieces = st.sampled_from(
    [*"-{}[],:#&*!|>'\"%@`?\n\t ~", "- ", ": ", "&a ", "*a", "!!int ", "<<: ", "type", "0", "\x00"]
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_text_gives_a_graph_or_an_error_of_ours(data: st.DataObject) -> None:
    text = TEXT
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(pieces | st.text(max_size=4)) + text[start + length :]
    try:
        graph = from_yaml(text)
    except PurineError as error:
        place = error.where
    else:
        place = "<text>:"
        assert from_yaml(to_yaml(graph)).digest == graph.digest
    assert str(place).startswith("<text>:")


def test_it_is_quick() -> None:
    b = Builder()
    b.blob("x0", (64, 32))
    for number in range(2000):
        inputs = [f"x{number}", b.blob(f"w{number}", (32, 32))]
        outputs = [b.blob(f"x{number + 1}", (64, 32))]
        b.op(f"fc{number}", "InnerProduct", inputs, outputs, {"bias": False, "scale": 0.5})
        b.state(f"w{number}", trainable=True)
    graph = b.graph()
    began = time.process_time()
    assert from_yaml(to_yaml(graph)) == graph
    assert time.process_time() - began < 2.0
