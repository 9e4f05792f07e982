from purine.graph import NOTHING, Builder, Filler, Graph, Location, to_text

GOLDEN = """\
xn, _ = norm: Norm(x, eps=1e-05, dims=(1, 2))    # float32 4x8, _
h = fc1: InnerProduct(xn, w, b) lane compute:1    # bfloat16 4x2
h2 = send: Copy(h) lane outbound    # bfloat16 4x2 @ host 10.0.0.2, cuda:1
loss, hits = head: Loss(h2, label, mode='mean') @ host 10.0.0.2, cuda:1    # float32 scalar, int64 ?
log: Print(loss) @ host 10.0.0.2, cuda:1 lane io
input x: float32 4x8
input label: int64 4 @ host 10.0.0.2, cuda:1
state w -> w_next (trainable, xavier(variance='fan_in'), lr_mult=2.0, decay_mult=0)    # float32 2x8
state b -> b (constant)    # float32 2
control fc1 -> log
output loss
output hits"""


def test_golden() -> None:
    far = Location("10.0.0.2", "cuda:1")
    b = Builder()
    b.blob("x", (4, 8))
    b.blob("xn", (4, 8))
    b.blob("w", (2, 8))
    b.blob("w_next", (2, 8))
    b.blob("b", (2,))
    b.blob("h", (4, 2), "bfloat16")
    b.blob("h2", (4, 2), "bfloat16", far)
    b.blob("label", (4,), "int64", far)
    b.blob("loss", (), location=far)
    b.blob("hits", None, "int64", far)
    b.op("log", "Print", ["loss"], [], location=far, lane="io")
    b.op("norm", "Norm", ["x"], ["xn", NOTHING], {"eps": 1e-5, "dims": (1, 2)})
    b.op("fc1", "InnerProduct", ["xn", "w", "b"], ["h"], lane="compute:1")
    b.op("send", "Copy", ["h"], ["h2"], lane="outbound")
    b.op("head", "Loss", ["h2", "label"], ["loss", "hits"], {"mode": "mean"}, location=far)
    filler = Filler("xavier", {"variance": "fan_in"})
    b.state("w", "w_next", filler, trainable=True, lr_mult=2.0, decay_mult=0)
    b.state("b")
    b.control.add(("fc1", "log"))
    b.outputs = ["loss", "hits"]
    graph = b.graph()
    text = to_text(graph).splitlines()
    # w_next has no producer here, so the caller would have to feed it.
    assert [line for line in text if line != "input w_next: float32 2x8"] == GOLDEN.splitlines()
    assert str(graph) == to_text(graph)


def test_layouts_are_told() -> None:
    b = Builder()
    b.blob("x", (2, 3, 4, 4), layout="channels-last")
    b.op("relu", "Relu", ["x"], [b.blob("y", (2, 3, 4, 4))])
    assert to_text(b.graph()).splitlines()[1] == "input x: float32 2x3x4x4 channels-last"
    assert str(b.blobs["x"]) == "x: float32 2x3x4x4 channels-last"


def test_an_empty_graph_is_an_empty_text() -> None:
    assert to_text(Graph()) == ""


def test_a_broken_graph_prints_too() -> None:
    b = Builder()
    b.op("late", "Relu", ["y"], ["x"])
    b.op("early", "Relu", ["x"], ["y"])
    b.op("free", "Data", [], ["z"])
    assert to_text(b.graph()).splitlines() == [
        "z = free: Data()    # ?",
        "x = late: Relu(y)    # ?",
        "y = early: Relu(x)    # ?",
    ]


def test_workers_periods_and_versions_are_told() -> None:
    b = Builder()
    for name in ("w", "w/next", "v", "v/next", "y"):
        b.blob(name, ())
    b.op("read", "Fetch", ["w"], ["y"], lane="inbound", every=4, phase=1, worker=2)
    b.op("more", "Add", ["w"], ["w/next"], worker=2)
    b.op("less", "Add", ["v"], ["v/next"], worker=2)
    b.state("w", "w/next", shared="fc1/weight", staleness=None)
    b.state("v", "v/next", staleness=3)
    lines = to_text(b.graph()).splitlines()
    assert "y = read: Fetch(w) lane inbound in 1 of 4 worker 2    # float32 scalar" in lines
    assert lines[-2].startswith("state w -> w/next (constant, shared as fc1/weight, any staleness)")
    assert lines[-1].startswith("state v -> v/next (constant, staleness 3)")
