"""GPT-2: a causal transformer that reads tokens and predicts the next one at every place."""

from __future__ import annotations

import math

from purine.arguments import checked
from purine.graph import Filler, Graph
from purine.kinds import Net
from purine.zoo._layers import classifier, drop, transformer

__all__ = ["gpt2"]


@checked
def gpt2(
    batch: int = 8,
    *,
    context: int = 1024,
    vocabulary: int = 50257,
    layers: int = 12,
    heads: int = 12,
    width: int = 768,
    dropout: float = 0.1,
) -> Graph:
    """By default the small one, of 124 million parameters.

    One table is both the embedding of the tokens and the weight of the scores. Dropout is behind
    the embedding and on what each layer adds, not on the weights of the attention.
    """
    net = Net()
    normal = Filler("gaussian", {"std": 0.02})
    added = Filler("gaussian", {"std": 0.02 / math.sqrt(2 * layers)})
    tokens, targets = net.source(
        [("tokens", (batch, context), "int64"), ("targets", (batch, context), "int64")]
    )
    table = net.parameter("embedding/weight", (vocabulary, width), normal)
    places = net.parameter("position/weight", (context, width), normal)
    x = net.apply("Embedding", [tokens, table], name="embedding")
    x = net.apply("Bias", [x, places], {"axis": 1}, name="position")
    x = drop(x, dropout, name="drop")
    x = transformer(
        x,
        layers=layers,
        heads=heads,
        hidden=4 * width,
        causal=True,
        eps=1e-5,
        approximate="tanh",
        fillers=(normal, added),
        dropout=dropout,
    )
    x = net.apply("InnerProduct", [x, table], {"axis": 2}, name="scores")
    return classifier(net, x, targets, axis=2)
