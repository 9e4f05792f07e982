"""The grammar of the random modules: what may happen to a value on its way, and how losses look.

Rules are templates: `<a|b>` is a choice, `{...}` an expression of the sizes at hand: `{D}` is the
last dimension of `x`, `{C}` the second, `{size()}` a random size, `{div(n)}` a divisor of n and
`{i}` the number of the rule's place. Ranks count the batch as a dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AIMS", "RULES", "STARTS", "Aim", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What may happen to a value `x` of one of the ranks.

    `forward` and `init` are lines of the module's methods; of several lists of lines in `forward`
    one is chosen. `helper` is text before the module. `often` is the rule's weight.
    """

    ranks: str
    often: int
    forward: str | tuple[str, ...]
    init: str = ""
    helper: str = ""


@dataclass(frozen=True, slots=True)
class Aim:
    """A loss: the rank of what it reads, its targets `t` and `u`, and its text.

    `forward` are lines at the end of the module, `result` is what it returns.
    """

    rank: int
    often: int
    targets: tuple[str, ...]
    loss: str
    forward: str = ""
    result: str = "x"


def _layer(ranks: str, often: int, layer: str) -> Rule:
    return Rule(ranks, often, "x = self.m{i}(x)", "self.m{i} = " + layer)


def _one_of(lines: str) -> tuple[str, ...]:
    return tuple(line.replace(";", "\n") for line in lines.splitlines() if line)


def _values(lines: str) -> tuple[str, ...]:
    return tuple(f"x = {line}" for line in _one_of(lines))


_STRAIGHT = '''
class Straight(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, grad):
        return grad
'''

_REVERSED = '''
class Reversed(torch.autograd.Function):
    """Turns gradients around."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None
'''

_CUBED = '''
class Cubed(torch.autograd.Function):
    """A function with a gradient of its own, from what it saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x / 4

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.tanh(x)
'''

_SYMMETRIC = '''
class Symmetric(nn.Module):
    """A parametrization by the upper triangle."""

    def forward(self, w):
        return w.triu() + w.triu(1).T
'''

_NESTED = '''
class Nested(nn.Module):
    """A block with a branch on the mode and a connection around it."""

    def __init__(self, size):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, size), nn.Tanh())
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = self.inner(x) * self.gain
        return x + (y if self.training else y * 0.5)
'''

_POINTWISE = _values("""
torch.tanh(x)
torch.sigmoid(x)
F.relu(x)
F.gelu(x<|, approximate='tanh'>)
F.<silu|elu|selu|softplus|softsign|mish|hardtanh|hardswish|hardsigmoid|logsigmoid>(x)
F.<relu6|tanhshrink>(x)
F.<celu|leaky_relu|softshrink|hardshrink>(x, 0.1)
F.threshold(x, 0.1, 0.0)
F.rrelu(x, 0.2, 0.2)
torch.<sin|cos|atan|erf|sinh|asinh|expm1>(x * 0.5)
x.abs()
torch.log1p(x * x)
torch.exp(-x * x)
x.sign() * x.abs().sqrt().clamp(min=0.1)
x.clamp(<-1, 1|min=0.1|max=0.5>)
x ** <2|3|2.0> / 4
(x * x + 1).<sqrt|rsqrt|reciprocal|log>()
1 / (x * x + 1)
2.0 ** x.tanh()
torch.where(x.gt(0), x, 0.1 * x)
torch.where(x.gt(0), x, <0.5|torch.tensor(0.5)>)
x.masked_fill(x.lt(0), 0.1)
torch.maximum(x, 0.5 * x)
torch.minimum(x, x.detach())
torch.lerp(x, torch.tanh(x), 0.3)
torch.<addcmul|addcdiv>(x, x, x * x + 1, value=0.1)
torch.nan_to_num(x)
torch.logaddexp(x, -x)
torch.hypot(x, x + 1)
x.remainder(2.0)
torch.fmod(x, 2.0)
x.square()
x.mul(x.gt(0))
x * (x.detach() > 0).double() + x.floor()
torch.atan2(x, x * x + 1)
torch.xlogy(x, x * x + 1)
torch.special.<entr|log_ndtr|i0e|sinc>(x.sigmoid())
torch.polygamma(1, x * x + 1)
""")

_OVER_FEATURES = _values("""
x + x.mean(<1|-1>, keepdim=True)
x - x.<amax|amin|logsumexp>(<1|-1>, keepdim=True)
x / (x.std(<1|-1>, keepdim=True) + 1)
x.<softmax|log_softmax>(<1|-1>)
F.softmin(x, <1|-1>)
F.normalize(x, dim=<1|-1>)
x.cumsum(<1|-1>)
x.<cumprod|logcumsumexp>(-1)
x.<cummax|cummin>(-1).values
x.flip(<1|-1>)
x.roll(<1|-1>, <1|-1>)
x.sort(<1|-1><|, descending=True>).values
x.topk(2, <1|-1><|, largest=False>).values
torch.cat([x, -x], <1|-1>)
torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
x.narrow(<1|-1>, 0, 2)
torch.cat(list(x.split(<1|2>, <1|-1>))[::-1], <1|-1>)
torch.cat(x.unbind(1)[::-1], <0|-1>)
torch.cat(x.tensor_split(3, -1)[::2], -1)
F.glu(x, <1|-1>)
x * torch.sigmoid(x.median(<1|-1>, keepdim=True).values)
x.diff(dim=-1)
x[..., ::2]
x[:, torch.arange({C} - 1, -1, -1)]
x[:, [0, -1, 0]]
x.repeat_interleave(2, -1)
x.repeat(*[1] * (x.dim() - 1), 2)
F.pad(x, (1, <0|1|-1>))
F.pad(x, (1, 1), <value=0.5|mode='constant'>)
x - x.amin(-1, keepdim=True).detach()
x * x.norm(<dim=-1|p=1, dim=-1>, keepdim=True)
x * torch.linalg.vector_norm(x, <2|3>, dim=<1|-1>, keepdim=True)
x * torch.ones_like(x).tril()
x.<tril|triu>()
x * x.argmax(-1, keepdim=True)
x.var(-1, keepdim=True, unbiased=False) + x
x * torch.linspace(0.5, 1, {D}, dtype=x.dtype)
torch.stack([x, x.tanh()], -1).flatten(-2)
x.kthvalue(2, -1, keepdim=True).values + x
x.unflatten(-1, (-1, 1)).squeeze(-1)
x + x.sum(tuple(range(1, x.dim())), keepdim=True)
x.max(-1, keepdim=True).values - x.min(1, keepdim=True).values
x * torch.tensor([0.5, 2.0]).repeat({D})[:{D}]
x.index_add(-1, torch.tensor([0]), x[..., -1:])
x.scatter_add(-1, torch.zeros_like(x, dtype=torch.int64), x)
x.scatter(-1, x.argsort(-1), x)
x.movedim(-1, 1).movedim(1, -1)
x.swapdims(1, -1).swapdims(1, -1)
torch.einsum('n...,n...->n...', x, x)
torch.tensordot(x, x.new_ones({D}, 3) * 0.2, 1)
F.layer_norm(x, x.shape[-1:])
x.renorm(2, 0, 1.0)
x.trapezoid(dim=-1).unsqueeze(-1) + x
x.quantile(0.5, -1, keepdim=True) + x
x.masked_select(torch.ones_like(x).bool()).view(x.shape)
torch.broadcast_to(x.mean(-1, keepdim=True), x.shape) * x
x.aminmax(dim=-1, keepdim=True).max + x
x.nansum(-1, keepdim=True) * x
x.unfold(-1, 2, 1).sum(-1)
x.as_strided(x.shape, x.stride())
x.reshape(x.size(0), -1)
x.reshape(len(x), -1).contiguous()
""")

_OVER_THE_BATCH = _values("""
x - x.mean(0)
x / (x.std(0) + 1)
x + x.logsumexp(0)
x - x.amax(0, keepdim=True)
x.softmax(0)
x + x.mean()
x.cumsum(0)
x.flip(0)
x.roll(1, <0|None>)
x / x.norm()
x * (x.shape[0] / 8)
x.sort(0).values
x + x[0]
x - x[:1].expand_as(x)
x * x.abs().max()
torch.cat([x[1:], x[:1]])
x - x.median(0).values
F.normalize(x, dim=0)
x[torch.arange(len(x)).flip(0)]
x + torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1)) * 0.1
F.layer_norm(x, x.shape)
x.view(2, -1, *x.shape[1:]).flip(0).view(x.shape)
torch.stack([x, x]).mean(0)
torch.cat([x, x])[: len(x)]
torch.stack(list(x)).tanh()
""")

_IN_PLACE = _one_of("""
x.<relu_|tanh_|sigmoid_|neg_|abs_|sin_>()
x.mul_(0.5)
x.add_(1, alpha=0.5)
x += 0.25
x *= 0.75
x /= 2
x **= 2
x -= x.detach().mean(1, keepdim=True)
x += x.tanh()
x.clamp_(-1, 1)
F.<relu|elu|silu|hardtanh|leaky_relu>(x, inplace=True)
F.dropout(x, 0.0, inplace=True)
x[:, 0] = 0.5
x[:, 0] *= 2
x[:, 1:] += 1
x[..., -1] = x[..., 0].clone() * 2
x[:, :1].zero_()
x.view(-1).mul_(0.5)
x.narrow(1, 0, 1).fill_(0.25)
x.transpose(0, 1)[0].add_(1)
x.select(1, 0).neg_()
x.masked_fill_(x.detach() > 1, 0.5)
x.unsqueeze(1)[:, 0].add_(0.5)
x[..., ::2].mul_(0.5)
x.flatten(1)[:, 1].sub_(1)
x.chunk(2, 1)[0].mul_(2)
x.unbind(1)[0].mul_(2)
x.index_fill_(1, torch.tensor([0]), 0.5)
x.index_add_(1, torch.tensor([0]), x[:, 1:2].clone())
x.index_copy_(1, torch.tensor([0]), x[:, 1:2].clone())
x.index_put_((torch.arange(len(x)), torch.zeros(len(x), dtype=torch.int64)), x.new_ones(()))
x[:, [0, 1]] = x[:, [1, 0]].clone()
x[x.detach() > 1] = 0.5
x.add_(x)
x.sub_(x.detach())
x.detach().mul_(0.5)
x.data.mul_(0.5)
x[0] += 1
x[-1].mul_(0.5)
x.swapaxes(0, 1)[0] *= 0.5
x.mT.mul_(0.5)
x.copy_(x.detach().flip(1))
x.unsqueeze_(1)
x.transpose_(1, -1)
x.squeeze_(1)
x[:, None][..., 0].add_(1)
x.lerp_(torch.ones_like(x), 0.1)
x.scatter_(1, torch.zeros_like(x, dtype=torch.int64), 0.5)
x.diagonal(dim1=-2, dim2=-1).add_(0.5)
x.cumsum_(1)
x.addcmul_(x.detach(), x.detach(), value=0.1)
x.fill_(0.5)
x.flip(1).add_(1)
x.contiguous().mul_(0.5)
x.reshape(-1).add_(0.5)
x.reshape(len(x), -1)[:, 0] = 1.5
x.clone().mul_(3)
x.expand(2, *x.shape)[0].add_(0.5)
x.unfold(1, 1, 1).mul_(0.5)
x.movedim(1, 0)[0].add_(1)
x.T[0].mul_(0.5)
torch.where(x > 0, x, 0).add_(1)
torch.sigmoid_(x)
torch.clamp(x.detach(), -1, 1, out=x.detach())
with torch.no_grad():;    x.mul_(0.5)
""")

_VIEWS = (
    "y = x * 1.5\nv = y.view(-1)\nv[::2] *= 0.5\nx = x + y",
    "y = torch.zeros_like(x)\ny[:, 1:] = x[:, :-1]\nx = x + y",
    "y = torch.empty_like(x)\ny.copy_(x.tanh())\ny[:, 0] += x[:, 0]\nx = y",
    "y = x.new_zeros(x.shape)\ny += x\ny.narrow(-1, 0, 1).mul_(2)\nx = y",
    "a, b = x.chunk(2, 1)\nx = a * torch.sigmoid(b)",
    "a, b = x.chunk(2, 1)\na = a * 2\na += b\nb = b.clone().mul_(3)\nx = a - b",
    "y = x * 2\nz = y[:, :1]\ny.add_(1)\nx = x + z",
    "y = x * 2\nz = y.detach()\ny.add_(1)\nx = x + z",
    "y = [x * (k + 1) for k in range(2)]\ny[0] += y[1]\nx = sum(y)",
    "y = x.transpose(1, -1).contiguous()\ny += 1\nx = y.transpose(1, -1)",
    "y = x.clone()\nfor k in range(2):\n    y[:, k] = y[:, k] + y[:, k - 1]\nx = y",
    "y = x * 2\nz = y.view(y.shape)\nz.mul_(0.5)\nz = y + 1\ny.sub_(1)\nx = z * y.detach()",
    "y = x\ny = y * 2\nz = y\nz += 1\nx = x + y",
    "y = x.expand(2, *x.shape).clone()\ny[0] *= 2\nx = y.sum(0)",
    "y = torch.stack([x, x])\ny[0, :, 0] = 1\nx = y[0] + y[1]",
    "y = x.flatten(1).clone()\nv = y[:, :2]\ny.mul_(2)\nv += 1\nx = y.view(x.shape)",
)

RULES: tuple[Rule, ...] = (
    # Any rank: functions
    Rule("234", 12, _POINTWISE),
    Rule("234", 20, _OVER_FEATURES),
    Rule("234", 4, _OVER_THE_BATCH),
    Rule("234", 12, tuple(f"x = <x * 1.5|x.clone()>\n{line}" for line in _IN_PLACE)),
    Rule("234", 1, _IN_PLACE),
    Rule("234", 8, _VIEWS),
    # Any rank: layers
    _layer("234", 6, "nn.Linear({D}, {size()}<|, bias=False>)"),
    _layer(
        "234", 3, "nn.LayerNorm(<{D}|({C}, {D})|{D}, bias=False|{D}, elementwise_affine=False>)"
    ),
    _layer("234", 1, "nn.RMSNorm({D}<|, eps=1e-6>)"),
    _layer("234", 2, "nn.GroupNorm({div(C)}, {C}<|, affine=False>)"),
    _layer("234", 2, "nn.PReLU(<|{C}>)"),
    _layer("234", 2, "nn.<ReLU|ReLU6|Hardtanh|SiLU|ELU>(inplace=True)"),
    _layer("234", 1, "nn.<Softmax(1)|LogSoftmax(-1)|Softmin(1)|GLU(1)|Flatten()|Identity()>"),
    _layer("234", 1, "nn.Dropout(<0.0|0.5>)"),
    _layer("34", 1, "nn.<Dropout1d|FeatureAlphaDropout|AlphaDropout|Dropout2d>(<0.0|0.25>)"),
    Rule("234", 1, "x = x + F.dropout(x, 0.5, <False|self.training>)"),
    # Parameters: shared, tied, frozen, unused
    Rule("234", 3, "x = x <*|+|-> self.p{i}", "self.p{i} = nn.Parameter(torch.rand(<{D}|1|()>))"),
    Rule(
        "234",
        2,
        ("x = torch.tanh(self.m{i}(self.m{i}(x)))", "x = self.m{i}(x) + self.m{i}(x.tanh())"),
        "self.m{i} = nn.Linear({D}, {D})",
    ),
    Rule(
        "234",
        2,
        "x = self.b{i}(torch.tanh(self.a{i}(x)))",
        "self.a{i} = nn.Linear({D}, {D})\nself.b{i} = nn.Linear({D}, {D})\n"
        "self.b{i}.<weight = self.a{i}.weight|bias = self.a{i}.bias>",
    ),
    Rule("234", 4, "x = x + torch.tanh(self.m{i}(x))", "self.m{i} = nn.Linear({D}, {D})"),
    Rule(
        "234",
        2,
        "x = x + F.linear(self.m{i}(x), self.m{i}.weight.T)",
        "self.m{i} = nn.Linear({D}, {size()})",
    ),
    Rule(
        "234",
        2,
        "x = self.m{i}(x)",
        "self.m{i} = nn.Linear({D}, {D})\nself.m{i}.<weight|bias>.requires_grad_(False)",
    ),
    Rule("234", 1, "x = x * 1.0", "self.m{i} = nn.Linear({D}, {D})"),
    Rule("234", 3, "x = self.m{i}(x)", "self.m{i} = Nested({D})<||.eval()>", _NESTED),
    Rule(
        "234",
        2,
        "for part in self.m{i}:\n    x = part(x)",
        "self.m{i} = nn.ModuleList([nn.Linear({D}, {D}), nn.Tanh(), nn.Linear({D}, {D})])",
    ),
    Rule(
        "234",
        1,
        "x = x * torch.stack(list(self.p{i})).mean(0)",
        "self.p{i} = nn.ParameterList([torch.rand({D}), torch.rand({D})])",
    ),
    # Gradients that end or differ
    Rule("234", 2, "x = x + <(x * 2).detach()|x.detach().mean(1, keepdim=True)>"),
    Rule(
        "234",
        2,
        "with torch.no_grad():\n    s = x.<abs().amax(1, keepdim=True)|tanh()>\nx = x + s",
    ),
    Rule(
        "234",
        1,
        "with torch.no_grad():\n    s = self.m{i}(x)\nx = x + s + self.m{i}(x * 0.5)",
        "self.m{i} = nn.Linear({D}, {D})",
    ),
    Rule("234", 1, "x = Straight.apply(x)", helper=_STRAIGHT),
    Rule("234", 1, "x = Reversed.apply(x, 0.5)", helper=_REVERSED),
    Rule("234", 1, "x = Cubed.apply(x)", helper=_CUBED),
    # Parametrizations, hooks, functions of functions
    Rule(
        "23",
        2,
        "x = self.m{i}(x)",
        "self.m{i} = nn.utils.<parametrizations.spectral_norm|parametrizations.weight_norm|"
        "spectral_norm|parametrizations.orthogonal|weight_norm>(nn.Linear({D}, {size()}))",
    ),
    Rule(
        "23",
        1,
        "x = self.m{i}(x)",
        "self.m{i} = nn.Linear({D}, {D})\n"
        "nn.utils.parametrize.register_parametrization(self.m{i}, 'weight', Symmetric())",
        _SYMMETRIC,
    ),
    Rule(
        "234",
        1,
        "x = self.m{i}(x)",
        "self.m{i} = nn.Linear({D}, {D})\nself.m{i}.register_forward_"
        "<hook(lambda m, a, y: y * 0.5)|pre_hook(lambda m, a: (a[0] + 1,))>",
    ),
    Rule(
        "234",
        1,
        (
            "x = torch.utils.checkpoint.checkpoint(self.m{i}, x, use_reentrant=False)",
            "x = torch.vmap(self.m{i})(x)",
        ),
        "self.m{i} = nn.Sequential(nn.Linear({D}, {D}), nn.Tanh())",
    ),
    # Buffers and modes
    Rule(
        "2",
        4,
        "if self.training:\n    self.b{i}.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)\n"
        "x = x - self.b{i}",
        "self.register_buffer('b{i}', torch.<zeros|rand>({D})<|, persistent=False>)",
    ),
    Rule(
        "234",
        3,
        "self.b{i}<.add_(1)|.mul_(1.5)| += 1>\nx = x * (1 + 0.1 * self.b{i})",
        "self.register_buffer('b{i}', torch.<zeros(())|ones(1)>)",
    ),
    Rule(
        "2",
        1,
        "self.b{i} = 0.9 * self.b{i} + 0.1 * x.detach().mean(0)\nx = x <-|*> self.b{i}",
        "self.register_buffer('b{i}', torch.zeros({D}))",
    ),
    Rule(
        "2",
        2,
        "self.b{i}[0] = x.detach().mean()\nself.b{i}[1:] *= 0.5\nx = x + self.b{i}",
        "self.register_buffer('b{i}', torch.rand({D}))",
    ),
    Rule(
        "2",
        2,
        "x = x + self.b{i}\nself.b{i}.copy_(torch.cat([self.b{i}[1:], self.b{i}[:1]]))",
        "self.register_buffer('b{i}', torch.rand({D}))",
    ),
    Rule(
        "234",
        3,
        (
            "x = x.index_select(-1, self.b{i})",
            "x = x[..., self.b{i}]",
            "x = x.take_along_dim(self.b{i}.expand_as(x), -1)",
            "x = x.gather(-1, self.b{i}.expand(*x.shape[:-1], -1))",
        ),
        "self.register_buffer('b{i}', torch.randint({D}, ({D},)))",
    ),
    Rule("234", 1, "x = x * (<2.0 if self.training else 0.5|0.5 if self.training else 1>)"),
    Rule("234", 1, "if not self.training:\n    x = x.tanh()"),
    # Vectors
    _layer("2", 4, "nn.BatchNorm1d({D}<|, affine=False|, momentum=0.3>)"),
    _layer("2", 2, "nn.BatchNorm1d({D}<|, track_running_stats=False>)<|.eval()>"),
    Rule("2", 6, "x = x.view(x.shape[0], -1, {div(D)})"),
    Rule(
        "2",
        4,
        _values("x.unsqueeze(1)\nx[:, :, None]\ntorch.stack([x, x.flip(1)], 1)\nx.unfold(1, 2, 1)"),
    ),
    Rule("2", 2, "x = torch.einsum('nd,ne->nde', x, x)"),
    Rule("2", 1, "x = torch.einsum('nd,nd->n', x, x)[:, None] + x"),
    Rule(
        "2",
        2,
        "x = torch.einsum('nd,de->ne', x, self.p{i})",
        "self.p{i} = nn.Parameter(torch.rand({D}, 3))",
    ),
    Rule("2", 2, "x = self.m{i}(x, x.tanh())", "self.m{i} = nn.Bilinear({D}, {D}, {size()})"),
    Rule(
        "2",
        2,
        _values("""
(x @ x.T).softmax(1) @ x
x @ (x.T @ x) / len(x)
x - 0.1 * torch.cdist(x, x) @ x
torch.cat([x, x.mean(0, keepdim=True).expand(len(x), -1)], 1)
x + torch.fft.rfft(x).abs().mean(1, keepdim=True)
x + torch.fft.fft(x).real
"""),
    ),
    Rule(
        "2",
        2,
        "x = x @ torch.<linalg.inv|matrix_exp|linalg.pinv|linalg.cholesky>"
        "(self.p{i} @ self.p{i}.T + torch.eye({D}, dtype=x.dtype))",
        "self.p{i} = nn.Parameter(torch.rand({D}, {D}))",
    ),
    Rule("2", 2, "x = self.m{i}(x.argmax(1)) + x", "self.m{i} = nn.Embedding({D}, {D})"),
    Rule(
        "2",
        2,
        "x = self.m{i}((x[:, 0] > 0).long()) * x",
        "self.m{i} = nn.Embedding(2, {D}, padding_idx=0)",
    ),
    Rule(
        "2",
        2,
        "h = x.new_zeros(len(x), 3)\nfor _ in range(2):\n    h = self.m{i}(x, h)\nx = h",
        "self.m{i} = nn.<GRU|RNN>Cell({D}, 3)",
    ),
    Rule("2", 1, "x = self.m{i}(x)[0]", "self.m{i} = nn.LSTMCell({D}, 3)"),
    # Sequences: [batch, time or channels, features]
    _layer(
        "3",
        5,
        "nn.Conv1d({C}, {2 * div(C)}, <1|2|3>, stride=<1|2>, padding=<0|1>, dilation=<1|2>, "
        "groups=<1|{div(C)}>)",
    ),
    _layer(
        "3",
        2,
        "nn.ConvTranspose1d({C}, {2 * div(C)}, <2|3>, stride=<1|2>, padding=<0|1>, "
        "groups={div(C)})",
    ),
    _layer(
        "3",
        4,
        "nn.<MaxPool1d(2)|AvgPool1d(2, 1)|AdaptiveAvgPool1d(2)|AdaptiveMaxPool1d(2)|LPPool1d(2, 2)|"
        "MaxPool1d(3, 2, 1, ceil_mode=True)|AvgPool1d(3, 2, 1)>",
    ),
    _layer("3", 3, "nn.BatchNorm1d({C})"),
    _layer("3", 2, "nn.InstanceNorm1d({C}<|, affine=True|, track_running_stats=True>)"),
    Rule(
        "3",
        4,
        "x = self.m{i}(x)[0]",
        "self.m{i} = nn.<LSTM|GRU|RNN>({D}, 3<|, 2>, batch_first=True<|, bidirectional=True>)",
    ),
    Rule(
        "3",
        1,
        "x = self.m{i}(x.transpose(0, 1))[0].transpose(0, 1)",
        "self.m{i} = nn.<LSTM|GRU>({D}, 3<|, bias=False>)",
    ),
    Rule(
        "3",
        1,
        "x = self.m{i}(x)[1]<[0][-1]|[-1][-1]>",
        "self.m{i} = nn.LSTM({D}, 3, batch_first=True<|, proj_size=2>)",
    ),
    Rule(
        "3",
        4,
        "x = self.m{i}(x, x, x<|, need_weights=False|"
        ", attn_mask=torch.ones({C}, {C}).triu(1).bool()>)[0]",
        "self.m{i} = nn.MultiheadAttention({D}, {div(D)}<||, dropout=0.5>, batch_first=True)",
    ),
    Rule(
        "3",
        1,
        "y = x.transpose(0, 1)\nx = x + self.m{i}(y, y, y)[0].transpose(0, 1)",
        "self.m{i} = nn.MultiheadAttention({D}, {div(D)}<|, add_bias_kv=True>)",
    ),
    _layer(
        "3",
        2,
        "nn.TransformerEncoderLayer({D}, {div(D)}, 4, dropout=0.0, batch_first=True"
        "<|, norm_first=True>)",
    ),
    Rule("3", 3, "x = F.scaled_dot_product_attention(x, x, x<|, is_causal=True|, scale=0.5>)"),
    Rule(
        "3",
        2,
        "x = F.scaled_dot_product_attention(x, x, x, "
        "attn_mask=torch.ones({C}, {C}, dtype=torch.bool).tril())",
    ),
    Rule(
        "3",
        8,
        _values("""
x.flatten(1)
x.mean(1)
x[:, -1]
x.amax(1)
x.sum(1)
x.logsumexp(2)
x.prod(2)
x.max(2).values
"""),
    ),
    Rule(
        "3",
        2,
        _values("""
x @ x.transpose(1, 2)
torch.bmm(x, x.mT)
torch.einsum('ntd,nsd->nts', x, x)
torch.cdist(x, x)
torch.baddbmm(x @ x.mT, x, x.mT)
"""),
    ),
    Rule("3", 3, "x = x.transpose(1, 2)<|.contiguous()>"),
    Rule("3", 3, "x = x.unsqueeze(<1|2>)"),
    Rule(
        "3",
        2,
        "x = x + self.p{i}(torch.arange({C}))",
        "self.p{i} = nn.Embedding({C} + 1, {D}<|, padding_idx=0>)",
    ),
    Rule(
        "3",
        2,
        _values("""
x.transpose(0, 1).flip(0).transpose(0, 1)
x.reshape(-1, {D}).tanh().view(x.shape)
x.permute(2, 0, 1).cumsum(0).permute(1, 2, 0)
x.reshape(-1, {D}).softmax(1).view(len(x), -1, {D})
x.masked_fill(torch.arange({C})[:, None] > 1, 0.0)
"""),
    ),
    Rule(
        "3",
        2,
        "x = self.m{i}(x.flatten(0, 1)).unflatten(0, (-1, {C}))",
        "self.m{i} = nn.<Linear({D}, 3)|BatchNorm1d({D})>",
    ),
    # Images: [batch, channels, height, width]
    _layer(
        "4",
        8,
        "nn.Conv2d({C}, {2 * div(C)}, <1|2|3|(1, 3)>, stride=<1|2>, padding=<0|1|'same'>, "
        "dilation=<1|2>, groups=<1|{div(C)}><||, padding_mode='<reflect|circular|replicate>'>)",
    ),
    _layer(
        "4",
        2,
        "nn.ConvTranspose2d({C}, {2 * div(C)}, <2|3>, stride=<1|2>, padding=<0|1>, "
        "groups={div(C)}<|, bias=False>)",
    ),
    _layer(
        "4",
        6,
        "nn.<MaxPool2d(2)|MaxPool2d(3, 2, 1, ceil_mode=True)|AvgPool2d(2)|AvgPool2d(3, 2, 1)|"
        "AvgPool2d(3, 1, 1, count_include_pad=False)|AvgPool2d(2, divisor_override=3)|"
        "AvgPool2d(3, 2, ceil_mode=True)|AdaptiveAvgPool2d(2)|AdaptiveMaxPool2d((2, 1))|"
        "LPPool2d(2, 2)|MaxPool2d(2, 1, dilation=2)>",
    ),
    _layer("4", 4, "nn.BatchNorm2d({C}<|, affine=False|, momentum=0.3>)<||.eval()>"),
    _layer("4", 2, "nn.InstanceNorm2d({C}<|, affine=True|, track_running_stats=True>)"),
    _layer(
        "4",
        4,
        "nn.<ChannelShuffle(2)|PixelShuffle(2)|PixelUnshuffle(2)|Softmax2d()|ReflectionPad2d(1)|"
        "ReplicationPad2d(1)|ZeroPad2d((1, 0, 0, 1))|CircularPad2d(1)|Upsample(scale_factor=2)|"
        "Upsample(scale_factor=2, mode='bilinear')|Upsample((3, 5), mode='bicubic')|"
        "LocalResponseNorm(2)|Dropout2d(0.5)|Fold((3, 3), 1)>",
    ),
    Rule(
        "4",
        2,
        "x = F.interpolate(x, <scale_factor=0.5|size=3|"
        "scale_factor=2, mode='bilinear', align_corners=True|scale_factor=0.7, mode='area'>)",
    ),
    Rule(
        "4",
        8,
        _values("""
x.mean((2, 3))
x.flatten(1)
x.amax((2, 3))
F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1)
"""),
    ),
    Rule(
        "4",
        5,
        _values("""
x.flatten(2)
x.mean(2)
F.unfold(x, 2)
x.flatten(2).transpose(1, 2)
x[:, 0]
x.sum(1)
"""),
    ),
    Rule("4", 2, _values("x.permute(0, 2, 3, 1)\nx.rot90(1, (2, 3))\nx.movedim(1, -1)\nx.mT")),
    Rule("4", 1, "x = x.to(memory_format=torch.channels_last)"),
    Rule(
        "4",
        2,
        "x = self.m{i}(x) * x",
        "self.m{i} = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d({C}, {C}, 1), nn.Sigmoid())",
    ),
    Rule(
        "4",
        1,
        "y, k = F.max_pool2d(x, 2, return_indices=True)\n"
        "x = F.max_unpool2d(y, k, 2, output_size=x.shape)",
    ),
    Rule(
        "4",
        1,
        "g = F.affine_grid(self.p{i}.expand(len(x), 2, 3), x.shape, align_corners=False)\n"
        "x = F.grid_sample(x, g, align_corners=False)",
        "self.p{i} = nn.Parameter(torch.eye(2, 3)[None] * 0.9)",
    ),
    Rule("4", 1, "x = F.fold(F.unfold(x, 2, padding=1), x.shape[2:], 2, padding=1)"),
    Rule("4", 1, "x = F.scaled_dot_product_attention(x, x, x<|, is_causal=True>)"),
)
"""What may follow on what; weights are relative."""

_REAL = "generator=g, dtype=torch.float64)"
STARTS: tuple[tuple[str, Rule | None], ...] = (
    (f"torch.randn(count, <3|6>, {_REAL}", None),
    (f"torch.randn(count, <4|7|8>, {_REAL}", None),
    (f"torch.randn(count, <4|3>, <6|4>, {_REAL}", None),
    (f"torch.randn(count, <2|4>, <4|6>, <4|6>, {_REAL}", None),
    (f"torch.randn(count, <1|3>, 5, 4, {_REAL}", None),
    (
        "torch.randint(7, (count, <4|5>), generator=g)",
        Rule("", 1, "x = self.e(x)", "self.e = nn.Embedding(7, <4|6><|, padding_idx=0>)"),
    ),
    (
        "torch.randint(7, (count, 4), generator=g)",
        Rule(
            "",
            1,
            "x = self.e(x)",
            "self.e = nn.EmbeddingBag(7, 4, mode='<sum|mean|max>'<|, padding_idx=1>)",
        ),
    ),
    (
        "torch.randint(7, (count, 4), generator=g)",
        Rule("", 1, "x = F.one_hot(x, 7).to(torch.float64)"),
    ),
    (
        "torch.randint(7, (count, 4), generator=g)",
        Rule(
            "",
            1,
            "x = self.e(x) * (x > 0).unsqueeze(-1)",
            "self.e = nn.Embedding(7, 4<||, scale_grad_by_freq=True|, max_norm=1.0>)",
        ),
    ),
)
"""How samples are drawn, and what makes numbers of tokens."""

_LABELS = ("torch.randint(3, (count,), generator=g)",)
_REALS = (f"torch.randn(count, 3, {_REAL}",)
_BITS = ("torch.randint(2, (count, 3), generator=g).double()",)
_REDUCED = "<|, reduction='mean'|, reduction='sum'>"
AIMS: tuple[Aim, ...] = (
    Aim(2, 10, _LABELS, "return F.cross_entropy(y, t)"),
    Aim(2, 4, _LABELS, f"return F.cross_entropy(y, t{_REDUCED}<|, label_smoothing=0.1>)"),
    Aim(
        2,
        2,
        _LABELS,
        "return F.cross_entropy(y, t, reduction='none').<mean()|sum()|sum() / len(t)>",
    ),
    Aim(2, 2, _LABELS, f"return F.cross_entropy(y, t, torch.arange(1.0, 4).double(){_REDUCED})"),
    Aim(2, 2, _LABELS, "return F.cross_entropy(y, t, ignore_index=0)"),
    Aim(2, 2, _LABELS, f"return F.nll_loss(y.log_softmax(1), t{_REDUCED})"),
    Aim(2, 1, _LABELS, "return F.multi_margin_loss(y, t)"),
    Aim(
        2,
        2,
        _LABELS,
        "return -y.log_softmax(1).gather(1, t[:, None]).<mean()|sum() / y.shape[0]>",
    ),
    Aim(
        2,
        3,
        _LABELS,
        "return dict(loss=F.cross_entropy(y, t), accuracy=(y.argmax(1) == t).double().mean())",
    ),
    Aim(
        2,
        1,
        _LABELS,
        "return dict(loss=F.cross_entropy(y, t), hits=(y.argmax(1) == t).sum(), spread=y.std())",
    ),
    Aim(
        2,
        5,
        _REALS,
        f"return F.<mse_loss|l1_loss|smooth_l1_loss|huber_loss>(y, t{_REDUCED})",
    ),
    Aim(
        2,
        3,
        _REALS,
        "return <(y - t).pow(2).sum(1).mean()|((y - t) ** 2).mean(0).sum()|(y - t).norm()|"
        "(y - t).norm(dim=1).mean()|(y - t).abs().max()|((y - t) ** 2).mean().sqrt()|"
        "(y - t).pow(2).median()>",
    ),
    Aim(
        2,
        2,
        _BITS,
        f"return F.binary_cross_entropy_with_logits(y, t, pos_weight=torch.arange(1, 4){_REDUCED})",
    ),
    Aim(2, 2, _BITS, "return F.binary_cross_entropy(y.sigmoid(), t<|, weight=t + 1>)"),
    Aim(
        2,
        2,
        _BITS,
        "return F.<soft_margin_loss(y, 2 * t - 1)|multilabel_soft_margin_loss(y, t)|"
        "hinge_embedding_loss(y, 2 * t - 1)>",
    ),
    Aim(
        2,
        2,
        _REALS,
        "return F.kl_div(y.log_softmax(1), t.softmax(1), reduction='<batchmean|mean|sum>')",
    ),
    Aim(
        2,
        1,
        _REALS,
        "return F.<poisson_nll_loss(y, t.abs())|gaussian_nll_loss(y, t, y.detach().abs() + 0.1)>",
    ),
    Aim(
        2,
        2,
        _REALS,
        "return <1 - F.cosine_similarity(y, t).mean()|F.triplet_margin_loss(y, t, y.flip(1))|"
        "F.cosine_embedding_loss(y, t, torch.ones(len(y)))|"
        "F.margin_ranking_loss(y, t, torch.ones_like(y))>",
    ),
    Aim(
        2,
        1,
        _REALS,
        "s = F.normalize(y, dim=1) @ F.normalize(t, dim=1).T\nk = torch.arange(len(y))\n"
        "return (F.cross_entropy(s, k) + F.cross_entropy(s.T, k)) / 2",
    ),
    Aim(
        2,
        1,
        _REALS,
        "return <(y * t).logsumexp(0).mean()|(y - t).sum(1).logsumexp(0)|"
        "y.var(0).mean() + (t - y).mean()>",
    ),
    Aim(
        2,
        1,
        _REALS,
        "m = (t > 0).to(y.dtype)\nreturn ((y - t) ** 2 * m).sum() / m.sum().clamp(min=1)",
    ),
    Aim(
        2,
        2,
        _LABELS,
        "return F.cross_entropy(y, t) + 0.01 * <net.head.weight.pow(2).sum()|y.pow(2).mean()|"
        "sum(p.abs().sum() for p in net.parameters())>",
    ),
    Aim(
        2,
        2,
        _LABELS,
        "return F.cross_entropy(y[0], t) + 0.01 * y[1]",
        "w = self.head.weight.pow(2).sum()",
        "x, w",
    ),
    Aim(
        2,
        2,
        _LABELS,
        "return F.cross_entropy(y['x'], t) + y['w'].pow(2).mean()",
        "w = x.tanh()",
        "dict(x=x, w=w)",
    ),
    Aim(2, 2, (*_LABELS, *_REALS), "return F.cross_entropy(y, t) + F.mse_loss(y, u)"),
    Aim(
        3,
        4,
        ("torch.randint(3, (count, {C}), generator=g)",),
        "return F.cross_entropy(y.<transpose(1, 2), t|flatten(0, 1), t.flatten()>"
        "<|, ignore_index=0>)",
    ),
    Aim(3, 2, (f"torch.randn(count, {{C}}, 3, {_REAL}",), "return F.mse_loss(y, t)"),
    Aim(
        4,
        2,
        ("torch.randint(3, (count, {C}, {H}), generator=g)",),
        "return F.cross_entropy(y.movedim(-1, 1), t)",
    ),
)
"""Losses. A head of three numbers is put behind a module of their rank."""
