"""Operations beyond the listed ones: transforms, special functions and other compositions."""

from __future__ import annotations

import torch
from op_samples import between, bools, const, distinct, ints, normal, op
from torch import Tensor
from torch.nn import functional as F

X = normal(3, 4)
Y = normal(3, 4, seed=1)
POSITIVE = between(0.3, 3.0, 3, 4)
UNIT = between(0.1, 0.9, 3, 4)
SPECIAL = {
    "entr": UNIT, "erfcx": X, "expit": X, "i0e": X, "i1": X, "i1e": X, "log_ndtr": X, "logit": UNIT, "ndtr": X,
    "ndtri": UNIT, "psi": POSITIVE, "gammaln": POSITIVE,
}  # fmt: skip
CONSTANT_SPECIAL = {"bessel_j0": X, "bessel_j1": X, "bessel_y0": POSITIVE, "modified_bessel_i0": X}
EDGES = torch.tensor([-1.0, 0.0, 1.0])


def spectrum(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x))


def spectrogram(x: Tensor) -> Tensor:
    return torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True).abs()


def rope(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(3, 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones(3, 2), torch.arange(6.0).view(3, 2))).flatten(1)


def nested(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.softmax(0) @ row)(x)


def hessian_free(x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: (t**3).sum())(x)


ROWS = [
    *(op(f"special.{n}", getattr(torch.special, n), x) for n, x in SPECIAL.items()),
    *(const(f"special.{n}", getattr(torch.special, n), x) for n, x in CONSTANT_SPECIAL.items()),
    op("special.polygamma", lambda x: torch.special.polygamma(1, x), POSITIVE),
    op("special.xlog1py", torch.special.xlog1py, X, UNIT),
    const("special.zeta", torch.special.zeta, POSITIVE + 1, POSITIVE),
    const("igamma", torch.igamma, POSITIVE, POSITIVE + 1),
    # Fourier transforms; complex values stay inside
    op("fft.rfft", spectrum, X),
    op("fft round trip", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=4), X),
    op("fft.fft2", lambda x: torch.fft.fft2(x).abs(), X),
    op("fft convolution", lambda x, y: torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(y)).real, X, Y),
    op("fft.fftshift", lambda x: torch.fft.fftshift(torch.fft.fft(x)).imag, X),
    op("stft", spectrogram, normal(2, 32)),
    op("rotary embedding", rope, X),
    op("complex abs and angle", lambda x, y: torch.complex(x, y).abs() + torch.complex(x, y).angle(), X, Y),
    # shapes and sums
    op("cov", torch.cov, X),
    op("corrcoef", torch.corrcoef, X),
    op("gradient", lambda x: torch.gradient(x, dim=1), X),
    op("cumulative_trapezoid", lambda x: torch.cumulative_trapezoid(x, dim=1), X),
    op("logdet", lambda x: torch.logdet(x @ x.T + 4 * torch.eye(3)), X),
    op("combinations", torch.combinations, normal(5)),
    op("combinations repeated", lambda x: torch.combinations(x, 3, with_replacement=True), normal(4)),
    op("column_stack", lambda x, y: torch.column_stack([x, y]), X, Y),
    op("unravel", lambda x: x.flatten()[torch.arange(0, 12, 5)], X),
    op(
        "bucketed embedding",
        lambda x, w: F.embedding(torch.bucketize(x.detach(), EDGES), w),
        X,
        normal(4, 2),
    ),
    op("segment mean", lambda x, i: torch.zeros(3, 4).index_add(0, i, x) / 2, X, ints(0, 3, 3)),
    op("scatter softmax", lambda x, i: x.exp() / torch.zeros(2, 4).index_add(0, i, x.exp())[i], X, ints(0, 2, 3)),
    op("masked mean", lambda x, m: (x * m).sum(1) / m.sum(1).clamp(min=1), X, bools(3, 4)),
    op("straight-through", lambda x: x + (x.round() - x).detach(), X),
    op("where nan-safe", lambda x: torch.where(x > 0, x.clamp(min=1e-3).log(), x * 2), X),
    op("unique maximum one-hot", lambda x: F.one_hot(x.argmax(1), 4) * x, distinct(3, 4)),
    op("sorted by another", lambda x, y: x.gather(1, y.argsort(1)), X, distinct(3, 4)),
    op("soft top-k", lambda x: x.softmax(1).topk(2, dim=1).values.prod(1), X),
    op("polynomial features", lambda x: torch.stack([x**k for k in range(4)], -1), X),
    op("gram matrix", lambda x: (x[:, :, None] * x[:, None, :]).flatten(1).std(1), X),
    op("outer minus", lambda x: (x[:, None] - x[None]).norm(dim=-1) + 0 * x.sum(), X, grad=False),
    op("matmul chain in a loop", lambda x: [x := torch.tanh(x @ x.T @ x) for _ in range(3)][-1], X),
    op("local_response_norm", lambda x: F.local_response_norm(x, 3), normal(2, 4, 5)),
    op("cosine attention", lambda x: F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).T, X),
    op("adaptive softmax pieces", lambda x: torch.cat([x[:, :2].log_softmax(1), x[:, 2:].log_softmax(1)], 1), X),
    op("softmax in float64", lambda x: x.softmax(1, dtype=torch.float64).float(), X),
    op("fold of unfold", lambda x: F.fold(F.unfold(x, 2), (4, 5), 2), normal(1, 2, 4, 5)),
    op("max_unpool2d", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), distinct(1, 2, 4, 6)),
    op("fractional pieces", lambda x: F.adaptive_max_pool2d(x, (3, 2)), distinct(1, 2, 7, 5)),
    op("lp_pool1d", lambda x: F.lp_pool1d(x, 3, 2), between(0.5, 2, 1, 2, 6)),
    op("bilinear function", F.bilinear, normal(2, 3), normal(2, 4), normal(5, 3, 4)),
    op("rms_norm function", lambda x, w: F.rms_norm(x, (4,), w), X, POSITIVE[0]),
    op("group_norm function", lambda x: F.group_norm(x, 2), normal(2, 4, 3)),
    op("instance_norm function", F.instance_norm, normal(2, 4, 3)),
    op("prelu function", F.prelu, normal(2, 4, 3), between(0.1, 0.4, 4)),
    op("vmap", nested, X),
    const("func.grad", hessian_free, X),
    op("checkpoint", lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x * 2, use_reentrant=False), X),
    op("triangular masks", lambda x: (x @ x.T).masked_fill(~torch.ones(3, 3).tril().bool(), -1e9).softmax(-1), X),
    op("histogram by comparison", lambda x: torch.sigmoid(x[..., None] * 9 - torch.arange(3)).sum((0, 1)), X),
    op("addcmul chain", lambda x, y: x.addcmul(y, y, value=2).addcdiv(y, y.abs() + 1).lerp(x, 0.25), X, Y),
    op("float_power", lambda x: torch.float_power(x, 2).float(), POSITIVE),
    op("ldexp", lambda x: torch.ldexp(x, torch.tensor([1, 2, 3, 4])), X),
    const("frexp", lambda x: torch.frexp(x), X),
    const("nextafter", torch.nextafter, X, Y),
    const("gcd lcm", lambda i, j: (torch.gcd(i, j), torch.lcm(i, j)), ints(1, 30, 5), ints(1, 30, 5, seed=1)),
    const("isin", lambda i: torch.isin(i, torch.tensor([1, 3])), ints(0, 5, 9)),
    const("cummin", lambda x: torch.cummin(x, 1), distinct(3, 4)),
    const("allclose by parts", lambda x, y: ((x - y).abs() <= 1e-3).all(), X, X + 1e-4),
]
