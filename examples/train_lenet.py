"""Train LeNet on the embedded data, measure it, save it, and resume from the checkpoint.

The second half of the training runs in a new `Run`, as it would in another process. Its numbers are
those of an uninterrupted run, to the last bit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import purine as pu


def train(run: pu.Run, iterations: int) -> list[float]:
    """Train for some iterations; returns their losses."""
    losses = []
    for result in run.steps(iterations):
        losses.append(result.loss)
        if result.iteration % 50 == 0:
            print(f"iteration {result.iteration:4}: loss {result.loss:.3f}, lr {result['lr']:.4f}")
    return losses


def main(folder: Path, *, iterations: int = 400, batch: int = 64) -> list[float]:
    """Train in two halves, with a checkpoint in `folder` between them; returns all losses."""
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=batch), data.train)
    rate = pu.solvers.Cosine(0.05, max_iterations=iterations)
    step = pu.solvers.sgd(pu.backward(net), lr=rate, momentum=0.9, weight_decay=5e-4)
    test = pu.evaluation(net)
    print(f"the net has {len(net.ops)} ops, the whole training step {len(step.ops)}")

    half = iterations // 2
    with pu.Run(step, data=data, seed=0) as run:
        losses = train(run, half)
        print(f"half way: accuracy {run.evaluate(test)['accuracy']:.3f}")
        run.save(folder)

    with pu.Run(step, data=data) as run:
        print(f"resuming at iteration {run.load(folder)}")
        losses += train(run, iterations - half)
        print(f"at the end: accuracy {run.evaluate(test)['accuracy']:.3f}")
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
