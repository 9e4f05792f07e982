"""Random nets under random settings of `replicate` train as one device does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import purine as pu
from purine.analysis.infer import with_batch
from purine.graph import Graph
from purine.kinds import (
    Net,
    Var,
    batch_norm,
    concat,
    conv,
    dropout,
    eltwise,
    inner_product,
    lrn,
    pool,
    relu,
    softmax_loss,
    tanh,
)
from purine.parallel import replicate
from tests.parallel.nets import agree, images, trained

SHAPE = (2, 6, 6)
DATA = images(SHAPE, 50)


def widened(x: Var, name: str) -> Var:
    return conv(x, x.shape[1], kernel=3, pad=1, name=name)


def pooled(x: Var, name: str) -> Var:
    return pool(x, kernel=2, stride=2, name=name) if x.shape[2] > 3 else x


LAYERS = {
    "conv": lambda x, name: conv(x, 4, kernel=3, pad=1, name=name),
    "pool": pooled,
    "relu": lambda x, name: relu(x, name=name),
    "tanh": lambda x, name: tanh(x, name=name),
    "norm": lambda x, name: batch_norm(x, eps=1e-2, name=name),
    "lrn": lambda x, name: lrn(x, size=3, name=name),
    "drop": lambda x, name: dropout(x, ratio=0.3, name=name),
    "skip": lambda x, name: eltwise([x, widened(x, f"{name}/conv")], name=name),
    "concat": lambda x, name: concat([x, widened(x, f"{name}/conv")], name=name),
}


def net_of(layers: list[str]) -> Graph:
    net = Net(dtype="float64")
    data, label = net.data((1, *SHAPE))
    x = data
    for number, layer in enumerate(layers):
        x = LAYERS[layer](x, f"{layer}{number}")
    x = dropout(relu(inner_product(x, 8, name="fc1"), name="relu"), ratio=0.5, name="drop")
    net.output(softmax_loss(inner_product(x, 10, name="fc2"), label, name="loss"))
    return net.graph()


@settings(max_examples=25, deadline=None)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), max_size=5),
    shares=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    topology=st.sampled_from(["sharded", "server", "tree", "ring", "native"]),
    bucket=st.sampled_from([0, 500, 1 << 16]),
    momentum=st.sampled_from([0.0, 0.9]),
    again=st.sampled_from([None, 3]),
)
def test_random_nets_train_as_on_one_device(
    layers: list[str],
    shares: list[int],
    topology: str,
    bucket: int,
    momentum: float,
    again: int | None,
) -> None:
    net = net_of(layers)

    def step_of(batch: int) -> Graph:
        return pu.solvers.sgd(pu.backward(with_batch(net, batch)), lr=0.05, momentum=momentum)

    parts = [step_of(share) for share in shares]
    step = replicate(
        parts[0] if len(set(shares)) == 1 else parts,
        [f"cpu:{number}" for number in range(len(shares))],
        topology=topology,  # type: ignore[arg-type]
        bucket=bucket,
        batch_norm="synchronised",
    )
    if again is not None:
        step = pu.recompute(step, again)
    expected = trained(step_of(sum(shares)), data=DATA, steps=3)
    agree(trained(step, data=DATA, steps=3), expected)
