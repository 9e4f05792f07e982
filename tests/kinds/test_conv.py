from __future__ import annotations

import pytest

from purine.errors import KindError
from purine.graph import Filler
from purine.kinds import Net, conv, deconv


def test_layers_own_weight_and_bias() -> None:
    net = Net()
    x = net.input("x", (2, 4, 9, 8))
    y = conv(x, 6, kernel=(3, 2), stride=2, pad=1, groups=2, name="conv1")
    z = deconv(y, 3, kernel=4, stride=2, pad=1, bias=False, weight_filler=Filler("bilinear"))
    assert y.shape == (2, 6, 5, 5)
    assert z.shape == (2, 3, 10, 10)
    blobs = net.graph().blobs
    assert blobs["conv1/weight"].shape == (6, 2, 3, 2)
    assert blobs["conv1/bias"].shape == (6,)
    assert blobs["deconv/weight"].shape == (6, 3, 4, 4)
    assert "deconv/bias" not in blobs


def test_settings_that_are_defaults_are_not_written() -> None:
    net = Net()
    conv(net.input("x", (2, 4, 9, 8)), 6, kernel=3, pad=1, name="conv1")
    assert net.graph().ops["conv1"].attributes == {"pad": 1}


def test_a_kernel_that_does_not_fit_is_refused_with_names() -> None:
    net = Net()
    with pytest.raises(KindError, match="op 'conv1'") as caught:
        conv(net.input("x", (2, 4, 3, 3)), 6, kernel=5, name="conv1")
    assert "conv1/weight: float32 [6, 4, 5, 5]" in str(caught.value)
