"""Ops that write over their inputs, or draw what no seed decides, are refused by name."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import purine as pu
from purine.analysis.infer import check
from purine.analysis.purity import watched
from purine.errors import KindError
from purine.graph import from_yaml
from purine.kinds import kind
from tests.kinds.cases import ATEN_CASES, CASES, Case


@kind
def PurityDraws(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


@kind
def PurityDrops(x: Tensor, *, train: bool = True) -> Tensor:
    return F.dropout(x, 0.5, training=train)


@kind
def PurityDrawsInPython(x: Tensor) -> Tensor:
    return x * random.random()


@kind
def PurityDrawsInNumpy(x: Tensor) -> Tensor:
    return x * float(np.random.rand())


@kind
def PurityWrites(x: Tensor) -> Tensor:
    return x.mul_(2)


@kind
def PurityWritesThroughView(x: Tensor) -> Tensor:
    x.view(-1)[0] = 1
    return x * 2


@kind
def PurityWritesStatistics(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.batch_norm(x, mean.view(-1)[:4], var.view(-1)[:4], training=True)


@kind
def PurityWritesItsOwn(x: Tensor) -> Tensor:
    return torch.zeros_like(x).add_(x)


def net(kind: str, inputs: int, settings: str = "", outputs: str = "out") -> str:
    names = ["x", "y", "z"][:inputs]
    blobs = "".join(f"- {{type: blob, name: {name}, size: [2, 4, 4, 4]}}\n" for name in names)
    return blobs + (
        f"- {{type: op, op_type: {kind}, name: op1, inputs: [{', '.join(names)}], "
        f"outputs: [{outputs}]{settings}}}\n"
    )


DRAWING = [
    ("aten.rand_like", 1, "", "use a kind that draws by seed, stream and iteration: Dropout"),
    ("aten.bernoulli", 1, "", "RandomMask"),
    ("aten.bernoulli.p", 1, ", p: 0.5", "RandomMask"),
    ("aten.native_dropout", 1, ", p: 0.5, train: true", "Dropout"),
    ("aten.dropout", 1, ", p: 0.5, train: true", "Dropout"),
    ("aten.randperm", 0, ", n: 4", "RandomMask"),
    ("aten.multinomial", 1, ", num_samples: 2", "RandomMask"),
    ("aten.normal_", 1, "", "RandomMask"),
    ("aten.scaled_dot_product_attention", 3, ", dropout_p: 0.1", "set dropout_p to 0"),
    ("sized.aten.rand_like", 2, "", "RandomMask"),
    ("PurityDraws", 1, "", "give PurityDraws the inputs seed and iteration"),
    ("PurityDrops", 1, "", "random_bits"),
    ("PurityDrawsInPython", 1, "", "random_bits"),
    ("PurityDrawsInNumpy", 1, "", "random_bits"),
]

NORM = ", momentum: 0.1, eps: 1.0e-5, cudnn_enabled: false, weight: ~, bias: ~"

WRITING = [
    ("aten.relu_", 1, "", "x", "use aten.relu"),
    ("aten.relu_.default", 1, "", "x", "use aten.relu"),
    ("aten.add_.Tensor", 2, "", "x", "use aten.add.Tensor"),
    ("aten.add.out", 3, "", "z", "use aten.add.Tensor"),
    ("aten.copy_", 2, "", "x", "use aten.copy"),
    ("aten.rrelu_with_noise", 2, "", "y", "use a kind that returns a new value"),
    (
        *("aten.batch_norm", 3, f", training: true{NORM}", "y"),
        "use aten._native_batch_norm_legit_functional",
    ),
    ("aten.instance_norm", 3, f", use_input_stats: true{NORM}", "y", "use "),
    ("PurityWrites", 1, "", "x", "or use aten.mul.Tensor"),
    ("PurityWritesThroughView", 1, "", "x", "x.clone()"),
    ("PurityWritesStatistics", 3, "", "y", "x.clone()"),
]

ALLOWED = [
    ("aten.dropout", 1, ", p: 0.5, train: false"),
    ("aten.scaled_dot_product_attention", 3, ""),
    ("PurityDrops", 1, ", train: false"),
    ("PurityWritesItsOwn", 1, ""),
    ("Dropout", 1, ""),
]


@pytest.mark.parametrize(("kind", "inputs", "settings", "remedy"), DRAWING)
def test_drawing_is_refused(kind: str, inputs: int, settings: str, remedy: str) -> None:
    text = net(kind, inputs, settings, "out, ~" if "native" in kind else "out")
    with pytest.raises(KindError, match="draws random numbers that no seed decides") as caught:
        check(from_yaml(text, file="net.yaml"))
    assert caught.value.op == "op1"
    assert caught.value.where == f"net.yaml:{inputs + 1}"
    assert kind.removeprefix("sized.") in str(caught.value.found)
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize(("kind", "inputs", "settings", "blob", "remedy"), WRITING)
def test_writing_over_an_input_is_refused(
    kind: str, inputs: int, settings: str, blob: str, remedy: str
) -> None:
    with pytest.raises(KindError, match=f"writes over its input '{blob}'") as caught:
        check(from_yaml(net(kind, inputs, settings), file="net.yaml"))
    assert caught.value.blob == blob
    assert caught.value.where == f"net.yaml:{inputs + 1}"
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize(("kind", "inputs", "settings"), ALLOWED)
def test_what_is_pure_passes(kind: str, inputs: int, settings: str) -> None:
    check(from_yaml(net(kind, inputs, settings)))


def test_backward_refuses_before_it_takes_a_kernel_apart() -> None:
    sizes = "- {type: blob, name: out, size: [2, 4, 4, 4]}\n- {type: blob, name: loss, size: []}\n"
    loss = "- {type: op, op_type: aten.sum, name: loss, inputs: [out], outputs: [loss]}\n"
    graph = from_yaml(net("PurityDraws", 1) + sizes + loss)
    with pytest.raises(KindError, match=r"op 'op1' .* draws random numbers"):
        pu.backward(graph, losses={"loss": 1.0}, wrt=["x"])


@pytest.mark.parametrize("case", [*CASES, *ATEN_CASES], ids=str)
def test_no_kernel_of_ours_writes_or_draws(case: Case) -> None:
    inputs = [value.clone() for value in (*case.inputs, *case.implied())]
    with torch.no_grad(), watched(inputs):
        case.kernel()(*inputs)
