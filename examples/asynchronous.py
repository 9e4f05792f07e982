"""Train LeNet on workers that do not wait for each other, by several schemes, for equal images."""

from __future__ import annotations

from functools import partial

import purine as pu

SCHEMES = {
    "synchronous": {"data": 2},
    "ssp": {"workers": 2, "asynchronous": "ssp", "staleness": 4},
    "easgd": {"workers": 2, "asynchronous": "easgd", "every": 4},
    "gossip": {"workers": 2, "asynchronous": "gossip"},
}


def main(*, rounds: int = 200, batch: int = 64) -> dict[str, float]:
    """The test accuracy of each scheme after so many batches."""
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=batch), data.train)
    found = {}
    for name, settings in SCHEMES.items():
        solver = partial(pu.solvers.sgd, lr=0.02, momentum=0.9)
        step = pu.compose(net, solver=solver, devices="cpu:0-1", **settings)
        # A worker trains its half of a batch in an iteration.
        iterations = rounds * settings.get("workers", 1)
        with pu.Run(step, data=data, seed=0, threads=1, share_cores=True) as run:
            for _ in run.steps(iterations):
                pass
            found[name] = run.evaluate(pu.evaluation(net))["accuracy"]
        print(f"{name:12} accuracy {found[name]:.3f}")
    return found


if __name__ == "__main__":
    main()
