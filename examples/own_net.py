"""Write a net with two branches and a kind of your own, print it as YAML, train it and use it.

A kind is one function: positional parameters are the op's inputs, keyword-only ones its attributes.
Shapes, the gradient and the checks of attributes follow from it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import purine as pu
from purine.kinds import (
    Net,
    Var,
    accuracy,
    concat,
    conv,
    flatten,
    global_pool,
    inner_product,
    pool,
    softmax_loss,
)
from purine.registry.kind import kind


@kind
def Swish(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """x times the sigmoid of `beta` times x."""
    return x * torch.sigmoid(beta * x)


def swish(x: Var, *, beta: float = 1.0, name: str | None = None) -> Var:
    """A layer of this kind."""
    return x.net.apply("Swish", [x], {"beta": beta}, name=name)


def block(x: Var, width: int, *, name: str) -> Var:
    """A narrow and a wide convolution side by side, joined along the channels."""
    narrow = conv(x, width, kernel=1, name=f"{name}/narrow")
    wide = conv(x, width, kernel=3, pad=1, name=f"{name}/wide")
    return swish(concat([narrow, wide], name=f"{name}/join"), beta=1.5, name=f"{name}/swish")


def two_branches(batch: int) -> pu.Graph:
    """Two blocks with a pooling between them, for images of 1 x 28 x 28."""
    net = Net()
    image, label = net.data((batch, 1, 28, 28))
    x = block(image, 8, name="block1")
    x = block(pool(x, kernel=2, stride=2, name="pool1"), 16, name="block2")
    x = flatten(global_pool(x, method="average", name="pool2"), name="features")
    scores = inner_product(x, 10, name="scores")
    net.output(softmax_loss(scores, label, name="loss"), accuracy(scores, label, name="accuracy"))
    return net.graph()


def main(*, iterations: int = 150, batch: int = 32) -> list[float]:
    """Show the net, train it, and feed images to it by hand; returns the losses."""
    data = pu.data.fashion_mini()
    net = pu.check(two_branches(batch))
    text = pu.graph.to_yaml(net)
    print(text)
    assert pu.graph.from_yaml(text) == net

    ready = pu.data.prepare(net, data.train)
    step = pu.solvers.adam(pu.backward(ready), lr=0.01)
    with pu.Run(step, data=data, seed=0) as run:
        losses = [result.loss for result in run.steps(iterations)]
        states = run.states()
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at the end")

    # The net for inference has no labels and no loss, and the caller feeds the images.
    scoring = pu.inference(net, ["scores"])
    known = {name: states[name] for name in scoring.states}
    images, labels = data.train.batch(np.arange(batch))
    scores = pu.compute(scoring, {"data": images / 255}, states=known)["scores"]
    print(f"labels  {labels[:12].tolist()}")
    print(f"guesses {scores.argmax(1)[:12].tolist()}")
    return losses


if __name__ == "__main__":
    main()
