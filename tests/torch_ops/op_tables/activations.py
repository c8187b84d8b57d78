"""Activations (section 3.7)."""

from __future__ import annotations

from op_samples import layer, normal, op
from torch import nn
from torch.nn import functional as F

X = normal(3, 4, 6)
PLAIN = (
    nn.ELU, nn.CELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
    nn.Tanhshrink, nn.Mish, nn.GLU,
)  # fmt: skip

ROWS = [
    *(layer(kind.__name__, kind, X) for kind in PLAIN),
    layer("GELU tanh", lambda: nn.GELU(approximate="tanh"), X),
    layer("ELU alpha", lambda: nn.ELU(alpha=0.5), X),
    layer("Hardtanh bounds", lambda: nn.Hardtanh(-0.3, 0.6), X),
    layer("LeakyReLU slope", lambda: nn.LeakyReLU(0.3), X),
    layer("PReLU channels", lambda: nn.PReLU(4), X),
    layer("Softplus settings", lambda: nn.Softplus(beta=2, threshold=1), X),
    layer("Softshrink bound", lambda: nn.Softshrink(0.3), X),
    layer("Threshold", lambda: nn.Threshold(0.1, -2.0), X),
    layer("RReLU evaluated", lambda: nn.RReLU().eval(), X),
    layer("ReLU inplace", lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), X),
    layer("Softmax", lambda: nn.Softmax(dim=-1), X),
    layer("Softmax first", lambda: nn.Softmax(dim=0), X),
    layer("Softmin", lambda: nn.Softmin(dim=1), X),
    layer("Softmax2d", nn.Softmax2d, normal(2, 3, 4, 5)),
    layer("LogSoftmax", lambda: nn.LogSoftmax(dim=1), X),
    op("glu", lambda x: F.glu(x, dim=1), X),
    op("glu last", F.glu, X),
    op("normalize", lambda x: F.normalize(x, dim=1), X),
    op("logsigmoid", F.logsigmoid, X),
    op("scalar input", lambda x: F.elu(x) + F.softplus(x) + F.gelu(x), normal()),
]
