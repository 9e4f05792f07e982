"""Train on a map-style data set of PyTorch, which must have a length and samples by index.

Purine reads it through `TorchSource`. The order of the samples is a function of the seed. So a run
is repeatable if the data set returns the same sample for the same index.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

import purine as pu


class Stripes(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]
    """Noisy grey images of stripes; the class is the direction in which they run."""

    classes = ("0 degrees", "45 degrees", "90 degrees", "135 degrees")

    def __init__(self, count: int, *, first: int = 0, size: int = 16) -> None:
        self.count = count
        self.first = first
        self.size = size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = self.first + index
        label = number % len(self.classes)
        random = torch.Generator().manual_seed(number)
        phase = 2 * math.pi * torch.rand((), generator=random)
        rows, columns = torch.meshgrid(*[torch.arange(self.size)] * 2, indexing="ij")
        angle = label * math.pi / 4
        image = torch.sin(rows * math.cos(angle) + columns * math.sin(angle) + phase)
        noise = torch.randn(self.size, self.size, generator=random)
        return (image + noise).unsqueeze(0), label


def main(*, iterations: int = 120, batch: int = 32, count: int = 1024) -> dict[str, float]:
    """Train LeNet on stripes; returns loss and accuracy on stripes that it has not seen."""
    train = pu.data.TorchSource(Stripes(count))
    test = pu.data.TorchSource(Stripes(count // 4, first=count))
    data = pu.data.DataSet("stripes", train, test)
    print("a sample:", ", ".join(map(str, train.fields)))

    image, classes = (1, 16, 16), len(Stripes.classes)
    net = pu.data.prepare(pu.zoo.lenet(batch=batch, image=image, classes=classes), train)
    step = pu.solvers.sgd(pu.backward(net), lr=0.005, momentum=0.9)
    with pu.Run(step, data=data, seed=0) as run:
        for result in run.steps(iterations):
            if result.iteration % 20 == 0:
                print(f"iteration {result.iteration:3}: loss {result.loss:.3f}")
        measured = run.evaluate(pu.evaluation(net))
    print(f"on new stripes: loss {measured['loss']:.3f}, accuracy {measured['accuracy']:.3f}")
    return measured


if __name__ == "__main__":
    main()
