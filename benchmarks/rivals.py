"""The zoo's nets in plain PyTorch, as its users would write them: what we are measured against."""

from __future__ import annotations

from torch import nn

__all__ = ["RIVALS"]


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


RIVALS = {"mlp": mlp, "lenet": lenet, "nin": nin}
