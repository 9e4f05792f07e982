"""The nets of the zoo as plain PyTorch modules, written without Purine.

Modules are declared in the order in which the graph declares its parameters, so that both can be
paired one by one. `forward` takes a batch and gives the losses by name, each with its weight.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "GPT2",
    "VGG",
    "AlexNet",
    "DenseNet",
    "GoogLeNet",
    "MobileNetV2",
    "ResNet",
    "UNet",
    "ViT",
]

Losses = dict[str, tuple[float, Tensor]]


def only(scores: Tensor, label: Tensor) -> Losses:
    return {"loss": (1.0, F.cross_entropy(scores, label))}


class AlexNet(nn.Module):
    def __init__(self, width: int, hidden: int, classes: int, flat: int) -> None:
        super().__init__()
        w = width
        self.features = nn.Sequential(
            nn.Conv2d(3, w, 11, 4),
            nn.ReLU(),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(w, w * 8 // 3, 5, padding=2, groups=2),
            nn.ReLU(),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(w * 8 // 3, w * 4, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(w * 4, w * 4, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.Conv2d(w * 4, w * 8 // 3, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Flatten(),
            nn.Linear(flat, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        return only(self.features(x), label)


class VGG(nn.Module):
    def __init__(self, width: int, hidden: int, classes: int, flat: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for block in ([1, 1], [2, 2], [4, 4, 4], [8, 8, 8], [8, 8, 8]):
            for factor in block:
                layers += [nn.Conv2d(before, factor * width, 3, padding=1), nn.ReLU()]
                before = factor * width
            layers.append(nn.MaxPool2d(2))
        layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU()]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        return only(self.layers(x), label)


def unit(before: int, after: int, kernel: int, stride: int = 1, *, norm: bool = True) -> nn.Module:
    """A convolution that keeps the size, with batch norm or a bias, and a rectifier."""
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=not norm)
    return nn.Sequential(conv, *([nn.BatchNorm2d(after)] if norm else []), nn.ReLU())


class Inception(nn.Module):
    def __init__(self, before: int, sizes: list[int], *, norm: bool) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, behind = sizes
        self.a = unit(before, one, 1, norm=norm)
        self.b = nn.Sequential(
            unit(before, reduce3, 1, norm=norm), unit(reduce3, three, 3, norm=norm)
        )
        self.c = nn.Sequential(
            unit(before, reduce5, 1, norm=norm), unit(reduce5, five, 5, norm=norm)
        )
        self.d = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(before, behind, 1, norm=norm))
        self.after = one + three + five + behind

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(x), self.c(x), self.d(x)], 1)


class GoogLeNet(nn.Module):
    SIZES = {
        "a3": [64, 96, 128, 16, 32, 32],
        "b3": [128, 128, 192, 32, 96, 64],
        "a4": [192, 96, 208, 16, 48, 64],
        "b4": [160, 112, 224, 24, 64, 64],
        "c4": [128, 128, 256, 24, 64, 64],
        "d4": [112, 144, 288, 32, 64, 64],
        "e4": [256, 160, 320, 32, 128, 128],
        "a5": [256, 160, 320, 32, 128, 128],
        "b5": [384, 192, 384, 48, 128, 128],
    }

    def __init__(
        self, width: int, hidden: int, classes: int, *, auxiliary: bool, norm: bool, side: int
    ) -> None:
        """`side` is that of the images behind the pool of an auxiliary classifier."""
        super().__init__()
        local = nn.Identity() if norm else nn.LocalResponseNorm(5)
        self.stem = nn.Sequential(
            unit(3, width, 7, 2, norm=norm),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            local,
            unit(width, width, 1, norm=norm),
            unit(width, 3 * width, 3, norm=norm),
            local,
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        self.parts = nn.ModuleDict()
        before = 3 * width
        for name, sizes in self.SIZES.items():
            module = Inception(before, [size * width // 64 for size in sizes], norm=norm)
            self.parts[name] = module
            before = module.after
            if auxiliary and name in ("a4", "d4"):
                self.parts[f"aux{name}"] = nn.Sequential(
                    unit(before, 2 * width, 1, norm=norm),
                    nn.Flatten(),
                    nn.Linear(2 * width * side * side, hidden),
                    nn.ReLU(),
                    nn.Linear(hidden, classes),
                )
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        losses: Losses = {}
        x = self.stem(x)
        for name in self.SIZES:
            x = self.parts[name](x)
            if name in ("b3", "e4"):
                x = F.max_pool2d(x, 3, 2, ceil_mode=True)
            if f"aux{name}" in self.parts:
                pooled = F.avg_pool2d(x, min(5, x.shape[-1]), 3)
                scores = self.parts[f"aux{name}"](pooled)
                key = "aux1/loss" if name == "a4" else "aux2/loss"
                losses[key] = (0.3, F.cross_entropy(scores, label))
        return losses | only(self.fc(x.mean((2, 3))), label)


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            unit(before, width, 1),
            unit(width, width, 3, stride),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short = nn.Sequential()
        if stride != 1 or before != after:
            self.short.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.short.append(nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, width: int, layers: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        before = width
        for stage, blocks in enumerate(layers):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                self.layers.append(Bottleneck(before, width << stage, stride))
                before = 4 * (width << stage)
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        return only(self.fc(self.layers(x).mean((2, 3))), label)


def before_unit(before: int, after: int, kernel: int) -> list[nn.Module]:
    """Batch norm and a rectifier, then a convolution."""
    conv = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(before), nn.ReLU(), conv]


class DenseLayer(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *before_unit(before, 4 * growth, 1), *before_unit(4 * growth, growth, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class DenseNet(nn.Module):
    def __init__(self, growth: int, layers: tuple[int, ...], classes: int) -> None:
        super().__init__()
        before = 2 * growth
        self.layers = nn.Sequential(unit(3, before, 7, 2), nn.MaxPool2d(3, 2, 1))
        for block, depth in enumerate(layers):
            if block:
                self.layers.extend([*before_unit(before, before // 2, 1), nn.AvgPool2d(2)])
                before //= 2
            for _ in range(depth):
                self.layers.append(DenseLayer(before, growth))
                before += growth
        self.layers.extend([nn.BatchNorm2d(before), nn.ReLU()])
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        return only(self.fc(self.layers(x).mean((2, 3))), label)


class Inverted(nn.Module):
    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = before * expansion
        self.body = nn.Sequential()
        if expansion > 1:
            self.body.extend(
                [nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
            )
        self.body.extend(
            [
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU6(),
                nn.Conv2d(wide, after, 1, bias=False),
                nn.BatchNorm2d(after),
            ]
        )
        self.added = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.added else self.body(x)


class MobileNetV2(nn.Module):
    """With a multiplier of 0.25, whose channels are written out here."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()
        )
        before = 8
        for expansion, after, blocks, first in (
            (1, 8, 1, 1),
            (6, 8, 2, 2),
            (6, 8, 3, 2),
            (6, 16, 4, 2),
            (6, 24, 3, 1),
            (6, 40, 3, 2),
            (6, 80, 1, 1),
        ):
            for block in range(blocks):
                self.layers.append(Inverted(before, after, expansion, 1 if block else first))
                before = after
        self.layers.extend(
            [nn.Conv2d(before, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
        )
        self.fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        return only(self.fc(self.layers(x).mean((2, 3))), label)


class UNet(nn.Module):
    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(layers + 1)]
        self.down = nn.ModuleList()
        before = 3
        for size in sizes:
            self.down.append(nn.Sequential(unit(before, size, 3), unit(size, size, 3)))
            before = size
        self.up = nn.ModuleList()
        for size in sizes[-2::-1]:
            self.up.append(nn.ConvTranspose2d(2 * size, size, 2, 2))
            self.up.append(nn.Sequential(unit(2 * size, size, 3), unit(size, size, 3)))
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        passed: list[Tensor] = []
        for index, double in enumerate(self.down):
            x = double(F.max_pool2d(x, 2) if index else x)
            passed.append(x)
        for index, fine in enumerate(passed[-2::-1]):
            x = self.up[2 * index + 1](torch.cat([fine, self.up[2 * index](x)], 1))
        return only(self.scores(x), label)


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, *, causal: bool, eps: float) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width, eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width, eps)
        self.fc = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            part.view(n, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).chunk(3, -1)
        )
        weights = q @ k.transpose(2, 3) / (c // self.heads) ** 0.5
        if self.causal:
            later = torch.ones(t, t, dtype=torch.bool).triu(1)
            weights = weights.masked_fill(later, float("-inf"))
        mixed = (weights.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c)
        x = x + self.mix(mixed)
        wide = F.gelu(self.fc(self.ln2(x)), approximate="tanh" if self.causal else "none")
        return x + self.out(wide)


class GPT2(nn.Module):
    def __init__(self, context: int, vocabulary: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.layers = nn.Sequential(
            *(Transformer(width, heads, 4 * width, causal=True, eps=1e-5) for _ in range(layers))
        )
        self.ln = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, targets: Tensor) -> Losses:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        scores = self.ln(self.layers(x)) @ self.tokens.weight.T
        return only(scores.transpose(1, 2), targets)


class ViT(nn.Module):
    def __init__(
        self, patches: int, classes: int, *, patch: int, layers: int, heads: int, width: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Embedding(1, width)
        self.places = nn.Embedding(patches + 1, width)
        self.layers = nn.Sequential(
            *(Transformer(width, heads, 2 * width, causal=False, eps=1e-6) for _ in range(layers))
        )
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor, label: Tensor) -> Losses:
        x = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token.weight.expand(len(x), 1, -1)
        x = torch.cat([token, x], 1) + self.places.weight
        return only(self.fc(self.ln(self.layers(x))[:, 0]), label)
