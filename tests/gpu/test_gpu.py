"""Graphs on a GPU give the numbers of the CPU: op by op, fused, captured, and over two devices.

Two logical devices share the card where there is only one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import purine as pu
from purine.data.synthetic import synthetic_tokens
from purine.graph import Graph
from purine.kinds import (
    Net,
    batch_norm,
    concat,
    conv,
    flatten,
    inner_product,
    pool,
    relu,
    softmax_loss,
)
from purine.parallel import pipeline, replicate
from purine.registry.aten import KERNELS
from purine.trace.overlap import overlap
from purine.transports.inproc import InprocWorld
from tests.gpu.states import trained
from tests.runtime.test_hosts import on_hosts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

GPUS = ["cuda:0", "cuda:1"]


@pytest.fixture(autouse=True)
def _exact() -> None:
    """Products of float32 in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


NETS: dict[str, Callable[[int], Graph]] = {
    "lenet": lambda batch: pu.zoo.lenet(batch),
    "mlp": lambda batch: pu.zoo.mlp(batch),
    "nin": lambda batch: pu.zoo.nin(batch, image=(1, 28, 28)),
}


def step_of(net: str = "lenet", batch: int = 32) -> Graph:
    ready = pu.data.prepare(NETS[net](batch), pu.data.fashion_mini().train)
    return pu.solvers.sgd(pu.backward(ready), lr=0.005, momentum=0.9)


def losses(graph: Graph, *, count: int = 20, compiled: bool | None = None) -> list[float]:
    data = pu.data.fashion_mini()
    with pu.Run(graph, data=data, seed=1, share_cores=True, compiled=compiled) as run:
        return [result.loss for result in run.steps(count)]


def fused(graph: Graph) -> Graph:
    return pu.fuse(graph, devices=GPUS)


@pytest.mark.parametrize(
    ("form", "compiled"),
    [
        pytest.param(lambda step: step, None, id="op by op"),
        pytest.param(fused, False, id="fused"),
        pytest.param(fused, None, id="compiled and captured"),
        pytest.param(lambda step: pu.fuse(step, pieces=3, devices=GPUS), None, id="pieces"),
    ],
)
def test_one_gpu_trains_as_the_cpu_does(
    form: Callable[[Graph], Graph], compiled: bool | None
) -> None:
    step = step_of()
    found = losses(form(pu.to_device(step, "cuda:0")), compiled=compiled)
    assert found == pytest.approx(losses(step), rel=2e-3)


@pytest.mark.parametrize(
    "form",
    [lambda step: step, fused, lambda step: pu.fuse(step, bucket=100_000, devices=GPUS)],
    ids=["op by op", "captured", "buckets"],
)
@pytest.mark.parametrize(
    "scheme",
    [
        lambda step, kind: replicate(step, f"{kind}:0-1"),
        lambda step, kind: replicate(step, f"{kind}:0-1", topology="ring"),
        lambda step, kind: replicate(step, f"{kind}:0-1", topology="native"),
        lambda step, kind: pipeline(step, 2, devices=f"{kind}:0-1", micro=4),
        lambda step, kind: pipeline(
            step, 2, devices=f"{kind}:0-1", micro=4, schedule="zero-bubble"
        ),
    ],
    ids=["replicate", "ring", "native", "pipeline", "zero-bubble"],
)
def test_two_devices_train_as_two_sets_of_cores_do(
    scheme: Callable[[Graph, str], Graph], form: Callable[[Graph], Graph]
) -> None:
    step = step_of(batch=8)
    found = losses(form(scheme(step, "cuda")), count=8)
    assert found == pytest.approx(losses(scheme(step, "cpu"), count=8), rel=2e-3)


@pytest.mark.parametrize("case", ["lenet", "nin", "gpt2-float32"])
def test_the_same_bits_from_run_to_run(case: str) -> None:
    assert len({trained(case, captured=False) for _ in range(3)}) == 1


@pytest.mark.parametrize("case", ["lenet", "nin", "gpt2"])
def test_the_same_bits_from_process_to_process(case: str, tmp_path: Path) -> None:
    """Each compiles for itself, and while the GPU is busy with the others."""
    runs = []
    for number in range(3):
        folders = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PURINE_CACHE"))
        own = {name: str(tmp_path / f"{name}{number}") for name in folders}
        command = [sys.executable, "-m", "tests.gpu.states", case]
        runs.append(subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE))
    found = [run.communicate(timeout=200)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(set(found)) == 1


def test_rows_are_added_up_in_a_fixed_order() -> None:
    """By our own kernel: with places that come once, often, and all the time."""
    add = KERNELS["aten.index_add_", "cuda"]
    torch.manual_seed(0)
    for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        rows = torch.randn(4099, 200, device="cuda").to(dtype)
        for most in (1, 10, 4000):
            places = torch.randint(0, most, (4099,), device="cuda")
            totals = [torch.ones(4000, 200, device="cuda", dtype=dtype) for _ in range(4)]
            for total in totals:
                add(total, 0, places, rows)
            wanted = torch.ones(4000, 200).double().index_add(0, places.cpu(), rows.cpu().double())
            assert all(torch.equal(total, totals[0]) for total in totals)
            torch.testing.assert_close(totals[0].cpu().double(), wanted, rtol=close, atol=0.01)
    for dtype in (torch.int64, torch.float64):
        total = torch.full((3, 2), 2**24 + 1, device="cuda", dtype=dtype)
        add(total, 0, torch.tensor([1, 1], device="cuda"), torch.ones_like(total[:2]))
        assert total.tolist() == [[2**24 + 1] * 2, [2**24 + 3] * 2, [2**24 + 1] * 2]


def test_a_row_for_nowhere_is_an_error() -> None:
    """In a process of its own: a GPU's error is the end of it."""
    script = """
import torch, purine.kinds
places = torch.tensor([0, 4], device="cuda")
torch.ops.purine.row_sums(places, torch.ones(2, 3, device="cuda"), 4)
torch.cuda.synchronize()
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode != 0
    assert "out of range" in found.stderr


@pytest.mark.parametrize("kind", ["aten.index_put", "aten.scatter_add"])
def test_values_are_added_up_in_a_fixed_order(kind: str) -> None:
    x, values = torch.randn(50, 40, device="cuda"), torch.randn(4000, 40, device="cuda")
    places = torch.randint(0, 50, (4000,), device="cuda")
    if kind == "aten.index_put":
        arguments: tuple[object, ...] = ([places], values, True)
    else:
        arguments = (0, places.unsqueeze(1).expand(4000, 40), values)
    found = [KERNELS[kind, "cuda"](x, *arguments) for _ in range(5)]
    assert all(torch.equal(other, found[0]) for other in found)
    torch.testing.assert_close(found[0], x.index_add(0, places, values), rtol=1e-3, atol=1e-3)


def test_checkpoints_and_evaluation_leave_the_gpu(tmp_path: object) -> None:
    data = pu.data.fashion_mini()
    net = pu.zoo.lenet(batch=32)
    test = pu.evaluation(pu.data.prepare(net, data.test or data.train))
    with pu.Run(fused(pu.to_device(step_of(), "cuda:0")), data=data, seed=0) as run:
        for _ in run.steps(30):
            pass
        on_cpu, on_gpu = run.evaluate(test), run.evaluate(pu.to_device(test, "cuda:0"))
        run.save(str(tmp_path))
        states = {name: value.cpu() for name, value in run.states().items()}
    assert on_gpu["loss"] == pytest.approx(on_cpu["loss"], rel=2e-3)
    with pu.Run(step_of(), data=data) as other:
        other.load(str(tmp_path))
        assert other.iteration == 30
        for name, value in other.states().items():
            assert torch.equal(value, states[name]), name


@pytest.mark.parametrize("topology", ["sharded", "server", "ring"])
@pytest.mark.parametrize("form", [lambda step: step, fused], ids=["op by op", "captured"])
def test_a_gpu_and_the_cores_of_another_host_train_as_one_device(
    form: Callable[[Graph], Graph], topology: str, tmp_path: Path
) -> None:
    """The hosts are threads. Each measures on its own device, and both write the checkpoint."""
    data, net = pu.data.fashion_mini(), pu.zoo.lenet(batch=32)
    ready = pu.data.prepare(net, data.train)
    test = pu.evaluation(pu.data.prepare(net, data.test or data.train))
    tests = {"host0": pu.to_device(test, "cuda:0"), "host1": test}
    step = form(
        pu.compose(
            ready,
            solver=partial(pu.solvers.sgd, lr=0.005, momentum=0.9),
            devices="host0:cuda:0,host1:cpu:0",
            shares=(3, 1),
            topology=topology,
        )
    )

    def work(world: InprocWorld) -> tuple[list[float], float]:
        with pu.Run(step, data=data, seed=1, world=world) as run:
            found = [result.loss for result in run.steps(20)]
            loss = run.evaluate(tests[world.host])["loss"]
            run.save(tmp_path)
            return found, loss

    one, other = on_hosts(work)
    assert isinstance(one, tuple), one
    assert one == other
    assert one[0] == pytest.approx(losses(step_of()), rel=2e-3)
    with pu.Run(step_of(), data=data) as alone:
        assert alone.load(tmp_path) == 20
        assert alone.evaluate(test)["loss"] == pytest.approx(one[1], rel=2e-3)


@pytest.mark.parametrize(("net", "rate"), [("lenet", 3e-4), ("nin", 1e-4)])
def test_low_precision_reaches_the_loss_of_float32(net: str, rate: float) -> None:
    """At rates where float32 runs whose first weights differ by 1e-7 stay together: at three times
    this one those of `nin` leave their plateau at different times, and part."""
    data = pu.data.fashion_mini()

    def trained(precision: str | None, *starts: int) -> list[float]:
        ready = pu.data.prepare(NETS[net](64), data.train)
        ready = ready if precision is None else pu.mixed(ready, precision)
        step = pu.solvers.adamw(pu.backward(ready), lr=rate)
        found = []
        for start in starts:
            with pu.Run(fused(pu.to_device(step, "cuda:0")), data=data, seed=1) as run:
                noise = torch.Generator().manual_seed(start)
                run.set_states(
                    {
                        name: value.cpu() * (1 + 1e-7 * torch.randn(value.shape, generator=noise))
                        for name, value in run.states().items()
                        if step.states[name].trainable
                    }
                )
                results = [result.loss for result in run.steps(300)]
            assert sum(results[-100:]) < 0.7 * sum(results[:100])
            found.append(sum(results) / len(results))
        return found

    wide = trained(None, 0, 1, 2)
    for precision in ("bf16", "fp16"):
        (low,) = trained(precision, 0)
        assert 0.95 * min(wide) < low < 1.05 * max(wide)


def test_rounded_weights_follow_what_is_loaded(tmp_path: object) -> None:
    data = pu.data.fashion_mini()
    low = pu.mixed(pu.data.prepare(NETS["mlp"](32), data.train), "bf16")
    step = fused(pu.to_device(pu.solvers.sgd(pu.backward(low), lr=0.05, momentum=0.9), "cuda:0"))
    with pu.Run(step, data=data, seed=1) as run:
        run.save(str(tmp_path))
        wanted = [result.loss for result in run.steps(8)]
        run.load(str(tmp_path))
        assert [result.loss for result in run.steps(8)] == wanted


def inception(batch: int) -> Graph:
    """Branches, norms, pools, and a convolution of images with stride 2."""
    net = Net()
    data, label = net.data((batch, 1, 28, 28))
    x = relu(batch_norm(conv(data, 32, kernel=5, stride=2, pad=2, bias=False, name="stem")))
    branches = [
        relu(batch_norm(conv(x, 16, kernel=1, bias=False, name=name))) for name in ("one", "two")
    ]
    branches.append(pool(x, kernel=3, pad=1))
    x = pool(concat(branches), kernel=3, stride=2, ceil=True)
    net.output(softmax_loss(inner_product(flatten(x), 1025, name="scores"), label, name="loss"))
    return net.graph()


def test_rewritten_steps_train_as_the_steps_they_come_from() -> None:
    """A vocabulary that is not aligned, pools of our own, images as squares, joined branches."""
    data = pu.data.fashion_mini()
    net = pu.data.prepare(inception(32), data.train)
    found = []
    for form in (lambda net: net, pu.join):
        step = pu.solvers.sgd(pu.backward(pu.mixed(form(net))), lr=0.02, momentum=0.9)
        graph = fused(pu.to_device(pu.layout(step, "channels-last"), "cuda:0"))
        for compiled in (False, None):
            with pu.Run(graph, data=data, seed=1, compiled=compiled) as run:
                found.append([result.loss for result in run.steps(60)])
    first = found[0]
    assert sum(first[-10:]) < 0.5 * sum(first[:10])
    for other in found[1:]:
        assert other[:5] == pytest.approx(first[:5], rel=1e-2)
        assert sum(other[-10:]) == pytest.approx(sum(first[-10:]), rel=0.1)


def small_gpt2() -> tuple[Graph, pu.data.DataSet]:
    net = pu.zoo.gpt2(batch=2, context=32, layers=2, width=64, heads=2, vocabulary=50, dropout=0.0)
    data = synthetic_tokens(32, vocabulary=50, count=16)
    return pu.solvers.adamw(pu.backward(pu.mixed(net)), lr=1e-3), data


def test_gpt2_trains_with_flash_attention() -> None:
    step, data = small_gpt2()
    found = []
    for graph in (step, fused(pu.to_device(step, "cuda:0"))):
        with pu.Run(graph, data=data, seed=0) as run:
            found.append([result.loss for result in run.steps(20)])
    assert found[1] == pytest.approx(found[0], rel=2e-2)


def test_kernels_of_our_own_train_a_transformer() -> None:
    """Rows and classes enough for the kernels of norms, GELU, attention's inputs and the loss."""
    sizes = {"layers": 2, "width": 64, "heads": 2, "vocabulary": 4101, "dropout": 0.0}
    net = pu.zoo.gpt2(batch=16, context=64, **sizes)
    data = synthetic_tokens(64, vocabulary=4101, count=32)
    step = pu.solvers.adamw(pu.backward(pu.mixed(net)), lr=1e-3)
    graph = fused(pu.to_device(step, "cuda:0"))
    found = []
    for compiled in (False, None):
        with pu.Run(graph, data=data, seed=0, compiled=compiled) as run:
            found.append([result.loss for result in run.steps(20)])
    assert found[0][-1] < 0.95 * found[0][0]
    assert found[1] == pytest.approx(found[0], rel=5e-3)


def test_pieces_hand_over_what_is_not_dense() -> None:
    """Queries, keys and values are views of one blob, and cross from piece to piece."""
    step, data = small_gpt2()
    step = pu.to_device(step, "cuda:0")
    found = []
    for pieces in (1, 3, 7):
        with pu.Run(pu.fuse(step, pieces=pieces, devices=GPUS), data=data, seed=0) as run:
            found.append([result.loss for result in run.steps(10)])
    assert found[1] == pytest.approx(found[0], rel=2e-2)
    assert found[2] == pytest.approx(found[0], rel=2e-2)


def test_transfers_hide_behind_compute_in_a_trace() -> None:
    step = fused(pu.to_device(step_of("nin", batch=64), "cuda:0"))
    data = pu.data.fashion_mini()
    with pu.Run(step, data=data, seed=0, record=True) as run:
        for _ in run.steps(30):
            pass
        trace = run.trace
    lanes = {(event.location.rpartition(" ")[2], event.lane) for event in trace.events}
    of_gpu = {("cuda:0", lane) for lane in ("compute", "inbound", "outbound")}
    assert lanes == of_gpu | {("cpu:0", "io")}
    assert overlap(trace, skip=10).hidden > 0.9
