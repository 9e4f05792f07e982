"""Small nets with values, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

import purine as pu
from purine.exporters.net import TrainedNet, trained_net
from purine.graph import Graph
from purine.registry.aten import dtype_of


class Residual(nn.Module):
    """Layers of PyTorch: convolutions without bias, norms, a sum, pools and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, (3, 1), padding=(1, 0), groups=3)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.out = nn.Linear(6 * 3 * 3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(torch.tanh(self.second(x)) + x)
        return self.out(x.flatten(1))


def from_torch() -> Graph:
    example = torch.zeros(4, 2, 12, 12), torch.zeros(4, dtype=torch.int64)
    return pu.from_torch(Residual(), nn.functional.cross_entropy, example).net


NETS: Mapping[str, Callable[[], Graph]] = {
    "lenet": lambda: pu.zoo.lenet(4),
    "unet": lambda: pu.zoo.unet(2, image=(1, 16, 16), classes=3, width=4, layers=2),
    "mobilenet": lambda: pu.zoo.mobilenet_v2(2, image=(3, 32, 32), classes=4),
    "torch": from_torch,
}


def trained(name: str) -> TrainedNet:
    """A net with random values; variances and scales are near 1, so that results are not tiny."""
    net, draw = NETS[name](), torch.Generator().manual_seed(0)
    values = {}
    for state in net.states:
        blob = net.blobs[state]
        shape = blob.shape or ()
        value = torch.randn(shape, generator=draw)
        if any(word in state for word in ("var", "norm/weight", "bn/weight")):
            value = 1 + value.abs() / 4
        elif len(shape) > 1:
            value = value / value[0].numel() ** 0.5
        values[state] = value.to(dtype_of(blob.dtype))
    return trained_net(name, net, values)


def samples(made: TrainedNet, batch: int) -> Tensor:
    shape = made.graph.blobs[made.graph.inputs[0]].shape or ()
    return torch.randn((batch, *shape[1:]), generator=torch.Generator().manual_seed(1))


def computed(made: TrainedNet, x: Tensor) -> Tensor:
    """What Purine computes."""
    graph = pu.inference(pu.analysis.infer.with_batch(made.net, len(x)), made.graph.outputs)
    values = {name: made.values[name] for name in graph.states}
    return pu.compute(graph, {graph.inputs[0]: x}, states=values)[graph.outputs[0]]
