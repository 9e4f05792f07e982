"""Does anything train to other numbers than PyTorch without a word?

Each case trains a small module for three steps in float64, in Purine and in plain PyTorch on the
same samples, and tells the largest difference of losses, parameters and buffers, or why Purine
refuses. `--before PATH` runs the same cases on another worktree, for comparison. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
BATCH, STEPS, CLASSES = 12, 3, 5
WORD = {True: "same", False: "DIFFERENT"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a worktree to compare with")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        for name, case in cases().items():
            print(json.dumps([name, verdict(case)]), flush=True)
        return
    found = {"now": results(HERE)}
    if options.before is not None:
        found = {"before": results(options.before.resolve()), **found}
    print("| case | " + " | ".join(found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for name in found["now"]:
        print(
            f"| {name} | " + " | ".join(str(each.get(name, "-")) for each in found.values()) + " |"
        )
    wrong = {
        who: sum(str(text).startswith("DIFFERENT") for text in each.values())
        for who, each in found.items()
    }
    print(json.dumps({"cases": len(found["now"]), "different": wrong}))


def results(worktree: Path) -> dict[str, str]:
    """The verdicts of all cases, by the code of a worktree."""
    environment = {**os.environ, "PYTHONPATH": str(worktree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker"]
    # From another folder: the current one comes first on the path of modules.
    made = subprocess.run(
        command, env=environment, cwd=tempfile.gettempdir(), capture_output=True, text=True
    )
    lines = [line for line in made.stdout.splitlines() if line.startswith("[")]
    if made.returncode:
        print(made.stderr, file=sys.stderr)
    return dict(json.loads(line) for line in lines)


def verdict(case: Callable[[], object]) -> str:
    from purine.errors import PurineError

    try:
        return str(case())
    except PurineError as error:
        return f"refused: {short(error)}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"


def short(error: Exception) -> str:
    """The first line of a message, without the place."""
    line = str(error).splitlines()[0]
    return re.sub(r"^[^ ]*\.py:\d+: ", "", line)[:100]


def cases() -> dict[str, Callable[[], object]]:
    """All cases by name; each gives a verdict, or raises a refusal."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    import purine as pu

    weights = torch.tensor([1.0, 2.0, 3.0, 0.5, 0.1], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(BATCH * STEPS, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (BATCH * STEPS,), generator=generator)

    class Net(nn.Module):
        def __init__(self, between: Callable[[Tensor], Tensor] | None = None) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, CLASSES)
            self.between = between or nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.between(torch.tanh(self.first(x))))

    def solver(graph: Any) -> Any:
        return pu.solvers.sgd(graph, lr=0.01)

    def whole(net: Any) -> Any:
        return solver(pu.backward(net))

    def replicas(net: Any) -> Any:
        return pu.compose(net, solver=solver, devices="cpu:0-1", data=2)

    def pipeline(net: Any) -> Any:
        return pu.compose(net, solver=solver, devices="cpu:0-1", pipeline=2, micro=3)

    def compared(
        make: Callable[[], nn.Module],
        loss: Callable[..., Tensor],
        scheme: Callable[[Any], Any] = whole,
        *,
        data: tuple[Tensor, ...] = (values, labels),
        example: tuple[Tensor, ...] | None = None,
        test: bool = False,
    ) -> str:
        module, reference = (seeded(make) for _ in range(2))
        given = example or tuple(value[:BATCH] for value in data)
        imported = pu.from_torch(module, loss, given)
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.01)
        expected = []
        for step in range(STEPS):
            *inputs, target = (v[step * BATCH : (step + 1) * BATCH] for v in data)
            found = loss(reference(*inputs), target)
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            expected.append(found.item())
        names = tuple(f"field{k}" for k in range(len(data)))
        source = pu.data.ArraySource(*(value.numpy() for value in data), names=names)
        builder = pu.Builder(imported.net)
        for op in imported.net.ops.values():
            if op.kind == "Data":
                settings = {**op.attributes, "shuffle": False}
                builder.ops[op.name] = pu.Op(
                    op.name, op.kind, op.inputs, op.outputs, settings, op.location, op.lane
                )
        dataset = pu.data.DataSet("cases", source, source)
        with pu.Run(scheme(builder.graph()), data=dataset, share_cores=True) as run:
            run.set_states(imported.values)
            losses = [result.loss for result in run.steps(STEPS)]
            states = imported.state_dict(run)
            if test:
                losses.append(run.evaluate(imported.test)["loss"])
        if test:
            reference.eval()
            parts = [
                loss(reference(*(v[k : k + BATCH] for v in data[:-1])), data[-1][k : k + BATCH])
                for k in range(0, BATCH * STEPS, BATCH)
            ]
            expected.append(torch.stack(parts).mean().item())
        far = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(losses, expected, strict=True))
        for name, value in reference.state_dict().items():
            far = max(far, (states[name] - value).abs().max().item())
        return f"{WORD[far < 1e-9]} ({far:.1e})"

    def seeded(make: Callable[[], nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        return make().double()

    def one_hot(target: Tensor) -> Tensor:
        return F.one_hot(target, CLASSES).double()

    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cross entropy, mean": F.cross_entropy,
        "cross entropy, sum": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
        "class weights": lambda y, t: F.cross_entropy(y, t, weight=weights),
        "ignore_index": lambda y, t: F.cross_entropy(y, t, ignore_index=1),
        "label smoothing and weights": lambda y, t: F.cross_entropy(
            y, t, weight=weights, label_smoothing=0.1
        ),
        "masked mean": lambda y, t: ((y**2).sum(1) * (t > 1)).sum() / (t > 1).sum(),
        "KL, batchmean": lambda y, t: F.kl_div(y.log_softmax(1), one_hot(t), reduction="batchmean"),
        "root of a mean": lambda y, t: F.mse_loss(y, one_hot(t)).sqrt(),
        "contrastive": lambda y, t: F.cross_entropy(y @ y.T, torch.arange(len(y))),
        "logsumexp over the batch": lambda y, t: torch.logsumexp(y[:, 0], 0),
    }

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(7, 6), nn.Linear(6, 7)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.table(ids))

    def language(y: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(y.flatten(0, 1), t.flatten())

    ids = torch.randint(7, (BATCH * STEPS, 5), generator=generator)
    others = torch.randint(7, (BATCH * STEPS, 5), generator=generator)

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return -0.5 * gradient

    def hooked(x: Tensor) -> Tensor:
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.25)
        return x

    def with_parameter_hook() -> nn.Module:
        module = Net()
        module.first.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return module

    def with_module_hook() -> nn.Module:
        module = Net()
        module.second.register_full_backward_hook(lambda m, i, o: tuple(2 * g for g in i))
        return module

    class Reassigned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("m", torch.zeros(8, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            self.m = 0.9 * self.m + 0.1 * x.detach().mean(0)
            return x - self.m

    def spectral(form: Any) -> nn.Module:
        module = Net()
        form(module.first)
        return module

    found: dict[str, Callable[[], object]] = {
        "1. the same tensor twice": lambda: compared(
            Embedded, language, data=(ids, others), example=(ids[:BATCH],) * 2
        ),
        "1. two views of one storage": lambda: compared(
            Embedded, language, data=(ids, others), example=(ids[:BATCH], ids[:BATCH].view(-1, 5))
        ),
    }
    for name, loss in losses.items():
        found[f"2. {name}, two replicas"] = lambda loss=loss: compared(Net, loss, replicas)
        found[f"2. {name}, pipeline"] = lambda loss=loss: compared(Net, loss, pipeline)
    found |= {
        "2. mean over the batch inside, two replicas": lambda: compared(
            lambda: Net(lambda x: x - x.mean(0)), F.cross_entropy, replicas
        ),
        "3. autograd.Function": lambda: compared(lambda: Net(Reversed.apply), F.cross_entropy),
        "3. Tensor.register_hook": lambda: compared(lambda: Net(hooked), F.cross_entropy),
        "3. hook of a parameter": lambda: compared(with_parameter_hook, F.cross_entropy),
        "3. backward hook of a module": lambda: compared(with_module_hook, F.cross_entropy),
        "3. detach": lambda: compared(lambda: Net(lambda x: x * x.detach()), F.cross_entropy),
        "4. spectral_norm, test graph": lambda: compared(
            lambda: spectral(nn.utils.spectral_norm), F.cross_entropy, test=True
        ),
        "4. parametrized spectral_norm, test graph": lambda: compared(
            lambda: spectral(nn.utils.parametrizations.spectral_norm), F.cross_entropy, test=True
        ),
        "5. a buffer that is assigned": lambda: compared(
            lambda: Net(Reassigned()), F.cross_entropy
        ),
        "5. aten.relu_ in a graph": lambda: graph_with("aten.relu_"),
        "5. aten.rand_like in a graph": lambda: graph_with("aten.rand_like"),
        "6. a job with iters: 010": lambda: job_with("iters: 010"),
        "6. a job with iters: 1:30": lambda: job_with("iters: 1:30"),
        "6. a checkpoint of another seed": another_seed,
        "7. join of an imported inception": joined,
    }
    return found


def graph_with(kind: str) -> str:
    """Whether `check` takes an op of a kind, whose input somebody else reads too."""
    import purine as pu

    builder = pu.Builder()
    for name in ("x", "y", "z"):
        builder.blob(name, (4,))
    builder.op("first", kind, ["x"], ["y"])
    builder.op("second", "aten.neg", ["x"], ["z"])
    pu.check(builder.graph())
    return "DIFFERENT (check passes)"


def job_with(line: str) -> str:
    from purine.job import read_options

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(f"net: mlp\n{line}\n")
        return f"DIFFERENT (trains {read_options(path)['iters']})"


def another_seed() -> str:
    """A checkpoint of a run with another seed in the folder of a run that is resumed."""
    import shutil

    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            purine(
                "train", "--net", "mlp", "--iters", "4", "--seed", str(seed), out=f"{folder}/{seed}"
            )
        shutil.rmtree(f"{folder}/0/checkpoints")
        shutil.copytree(f"{folder}/1/checkpoints", f"{folder}/0/checkpoints")
        code, text = purine("train", "--resume", "--iters", "6", out=f"{folder}/0")
        line = next((line for line in text.splitlines() if line.startswith("error")), "")
        return (
            f"refused: {line.partition('checkpoints/')[2][:90]}" if code else "DIFFERENT (resumes)"
        )


def purine(*arguments: str, out: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "purine", *arguments, "--out", out]
    made = subprocess.run(command, capture_output=True, text=True)
    return made.returncode, made.stdout + made.stderr


def joined() -> str:
    """How many convolutions an imported inception has, before and after `join`."""
    import torch
    from torch import nn

    import purine as pu

    class Inception(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(nn.Conv2d(3, size, 1) for size in (4, 5, 6))
            self.out = nn.Linear(15, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            joined = torch.cat([branch(x) for branch in self.branches], 1)
            return self.out(joined.mean((2, 3)))

    example = torch.randn(2, 3, 4, 4), torch.tensor([0, 1])
    net = pu.from_torch(Inception(), nn.functional.cross_entropy, example).net
    counts = [sum("conv" in op.kind for op in g.ops.values()) for g in (net, pu.join(net))]
    word = "same" if counts[1] < counts[0] else "DIFFERENT"
    return f"{word} ({counts[0]} convolutions become {counts[1]})"


if __name__ == "__main__":
    main()
