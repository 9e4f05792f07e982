"""Small PyTorch nets of many forms, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BATCH", "CASES", "Case", "Gpt", "Mlp", "ResNet"]

BATCH = 4


class Mlp(nn.Module):
    """Linear layers with rectifiers in place, and dropout."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 16)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(self.act(self.fc1(x))))


class Residual(nn.Module):
    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = (
            nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride > 1 or wide != out
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.down is None else self.down(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layer1 = nn.Sequential(Residual(4, 4, 1))
        self.layer2 = nn.Sequential(Residual(4, 8, 2))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(4 + 3 * i, affine=i > 0),
                nn.ReLU(),
                nn.Conv2d(4 + 3 * i, 3, 3, padding=1),
            )
            for i in range(3)
        )
        self.norm = nn.BatchNorm2d(13, track_running_stats=False)
        self.fc = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        x = F.avg_pool2d(F.relu(self.norm(torch.cat(found, 1))), 2)
        return self.fc(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.down2 = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.GELU())
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        up = F.interpolate(two, scale_factor=2, mode="bilinear")[:, :4] + self.up(two)
        return self.last(torch.cat([one, up], 1)), {"coarse": two.mean((2, 3))}


class Translator(nn.Module):
    """Encoder and decoder of nn.Transformer with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], dtype=self.head.weight.dtype
        )
        y = self.body(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(y)


class LanguageLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True)
        self.head = nn.Linear(7, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.lstm(self.embed(tokens))
        return self.head(y)


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).split(c, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """Token embeddings are tied to the head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.places = nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(GptBlock(8, 2) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 5, 8), requires_grad=False)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class Siamese(nn.Module):
    """Both images go through one tower, its batch norm included."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 6)
        )

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return F.pairwise_distance(self.tower(left), self.tower(right))


class Mixture(nn.Module):
    """Experts weighed by a gate: the two best of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(Mlp() for _ in range(3))
        self.register_buffer("load", torch.zeros(3))
        self.load: Tensor

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        least = scores.topk(2, -1)[0][:, -1:]
        weights = scores.masked_fill(scores < least, float("-inf")).softmax(-1)
        with torch.no_grad():
            self.load.mul_(0.9).add_(0.1 * weights.mean(0))
        found = torch.stack([expert(x) for expert in self.experts], 1)
        return (found * weights.unsqueeze(-1)).sum(1)


@dataclass(frozen=True)
class Case:
    """A module, its loss, and batches of data: inputs, then targets."""

    name: str
    make: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    inputs: tuple[str, ...]
    data: Callable[[torch.Generator, int], tuple[Tensor, ...]]

    def __str__(self) -> str:
        return self.name


def _labelled(*shape: int, classes: int) -> Callable[[torch.Generator, int], tuple[Tensor, ...]]:
    def make(g: torch.Generator, count: int) -> tuple[Tensor, ...]:
        x = torch.randn(count, *shape, generator=g, dtype=torch.float64)
        return x, torch.randint(classes, (count,), generator=g)

    return make


def _tokens(
    *lengths: int, classes: int = 11
) -> Callable[[torch.Generator, int], tuple[Tensor, ...]]:
    def make(g: torch.Generator, count: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(classes, (count, length), generator=g) for length in lengths)

    return make


def _segments(g: torch.Generator, count: int) -> tuple[Tensor, ...]:
    x = torch.randn(count, 1, 8, 8, generator=g, dtype=torch.float64)
    return x, torch.randint(2, (count, 8, 8), generator=g)


def _pairs(g: torch.Generator, count: int) -> tuple[Tensor, ...]:
    left, right = (torch.randn(count, 3, 8, 8, generator=g, dtype=torch.float64) for _ in range(2))
    return left, right, torch.randint(2, (count,), generator=g)


def token_loss(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def segment_loss(outputs: tuple[Tensor, dict[str, Tensor]], labels: Tensor) -> Tensor:
    scores, extra = outputs
    return F.cross_entropy(scores, labels) + 0.1 * extra["coarse"].pow(2).mean()


def contrast(distance: Tensor, same: Tensor) -> Tensor:
    away = F.relu(2 - distance) ** 2
    return torch.where(same.bool(), distance**2, away).mean()


CASES = (
    Case("mlp", Mlp, F.cross_entropy, ("data",), _labelled(6, classes=3)),
    Case("resnet", ResNet, F.cross_entropy, ("data",), _labelled(3, 8, 8, classes=5)),
    Case("densenet", DenseNet, F.cross_entropy, ("data",), _labelled(3, 8, 8, classes=5)),
    Case("unet", UNet, segment_loss, ("data",), _segments),
    Case("transformer", Translator, token_loss, ("source", "target"), _tokens(5, 4, 4)),
    Case("lstm", LanguageLstm, token_loss, ("data",), _tokens(5, 5)),
    Case("gpt", Gpt, token_loss, ("data",), _tokens(6, 6)),
    Case("vit", VisionTransformer, F.cross_entropy, ("data",), _labelled(3, 8, 8, classes=5)),
    Case("siamese", Siamese, contrast, ("left", "right"), _pairs),
    Case("mixture", Mixture, F.cross_entropy, ("data",), _labelled(6, classes=3)),
)
