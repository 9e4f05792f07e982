"""The zoo's nets in plain PyTorch, as its users would write them: what we are measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["RIVALS", "loss_of"]


def loss_of(scores: Tensor, label: Tensor) -> Tensor:
    """Cross entropy over the last axis, whether an image or every token has a label."""
    return F.cross_entropy(scores.flatten(0, -2), label.flatten())


def mlp(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * 28 * 28, 256),
        nn.ReLU(inplace=True),
        nn.Linear(256, 128),
        nn.ReLU(inplace=True),
        nn.Linear(128, classes),
    )


def lenet(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(inplace=True),
        nn.Linear(500, classes),
    )


def nin(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *_mlpconv(channels, (192, 160, 96), 5, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Dropout(0.5, inplace=True),
        *_mlpconv(96, (192, 192, 192), 5, 2),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Dropout(0.5, inplace=True),
        *_mlpconv(192, (192, 192, classes), 3, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def _mlpconv(channels: int, widths: tuple[int, int, int], kernel: int, pad: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width, (size, border) in zip(widths, ((kernel, pad), (1, 0), (1, 0)), strict=True):
        layers += [nn.Conv2d(channels, width, size, padding=border), nn.ReLU(inplace=True)]
        channels = width
    return layers


def alexnet(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 96, 11, 4),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(96, 256, 5, padding=2, groups=2),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(256, 384, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 384, 3, padding=1, groups=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1, groups=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(9216, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    )


def conv_norm_relu(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class Inception(nn.Module):
    def __init__(self, before: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, behind = sizes
        self.a = conv_norm_relu(before, one, 1)
        self.b = nn.Sequential(
            conv_norm_relu(before, reduce3, 1), conv_norm_relu(reduce3, three, 3)
        )
        self.c = nn.Sequential(conv_norm_relu(before, reduce5, 1), conv_norm_relu(reduce5, five, 5))
        self.d = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm_relu(before, behind, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(x), self.c(x), self.d(x)], 1)


def googlenet(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = [
        conv_norm_relu(channels, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        conv_norm_relu(64, 64, 1),
        conv_norm_relu(64, 192, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    ]
    before = 192
    for index, sizes in enumerate(
        (
            (64, 96, 128, 16, 32, 32),
            (128, 128, 192, 32, 96, 64),
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
            (256, 160, 320, 32, 128, 128),
            (384, 192, 384, 48, 128, 128),
        )
    ):
        if index in (2, 7):
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        layers.append(Inception(before, sizes))
        before = sizes[0] + sizes[2] + sizes[4] + sizes[5]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(before, classes)]
    return nn.Sequential(*layers)


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            conv_norm_relu(before, width, 1),
            conv_norm_relu(width, width, 3, stride),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short = nn.Sequential()
        if stride != 1 or before != after:
            self.short.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.short.append(nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x), inplace=True)


def resnet50(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = [conv_norm_relu(channels, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(before, 64 << stage, 2 if stage and not block else 1))
            before = 4 * (64 << stage)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        parts = self.qkv(self.ln1(x)).split(c, 2)
        q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop1(self.mix(mixed.transpose(1, 2).reshape(n, t, c)))
        return x + self.drop2(self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh")))


class GPT2(nn.Module):
    """The small one; the table of tokens is also the weight of the scores."""

    def __init__(self, context: int, vocabulary: int, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.Sequential(*(Block(width, width // 64, 0.1) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        for weight in (self.tokens.weight, self.places.weight):
            nn.init.normal_(weight, std=0.02)
        self.register_buffer("indices", torch.arange(context))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.tokens(tokens) + self.places(self.indices))
        return F.linear(self.ln(self.layers(x)), self.tokens.weight)


RIVALS = {
    "mlp": mlp,
    "lenet": lenet,
    "nin": nin,
    "alexnet": alexnet,
    "googlenet": googlenet,
    "resnet50": resnet50,
    "gpt2": GPT2,
}
"""Each takes what a sample has, channels or tokens, and the number of classes."""
