"""What the original refuses for lack of support works here, unless strict compatibility is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from op_samples import Alone, ints, normal
from torch import Tensor, nn
from torch.nn import functional as F

import poptorch

X = normal(4, 6)
IMAGE = normal(1, 2, 4, 4)
LINE = normal(1, 2, 4)
SEQUENCE = normal(5, 2, 3)
SMALL = ints(0, 9, 4, dtype=torch.int8)
CLASSES = ints(0, 6, 4)
LENGTHS = torch.tensor([5, 5])


def _add_to_every_second(x: Tensor) -> Tensor:
    y = x.clone()
    y[::2] += 1
    return y


def _fill_every_second(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, ::2] = 0
    return y


def _scale_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    y[1::2].t().mul_(2)
    return y


STEP = "In-place modification of slices with step size other than 1 is not supported."
HOST = r"Expected an IPU tensor but got tensor\(device=cpu, shape=\[2\], dtype="
WEIGHT = 'Parameter "weight" is unsupported'
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "nll weight": (lambda x, t: F.nll_loss(x, t, weight=torch.ones(6)), (X, CLASSES), WEIGHT),
    "cross entropy weight": (nn.CrossEntropyLoss(weight=torch.ones(6)), (X, CLASSES), WEIGHT),
    "ctc none": (
        lambda x, t, n: F.ctc_loss(x.log_softmax(-1), t, n, n - 3, reduction="none"),
        (SEQUENCE, ints(1, 3, 2, 2), LENGTHS),
        'CTCLoss with reduction="none" is currently not supported',
    ),
    "bag padding": (nn.EmbeddingBag(6, 3, padding_idx=1), (ints(0, 6, 2, 3),), "padding_idx is unsupported"),
    "linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), (LINE,), "only 'nearest' is supported"),
    "aligned": (nn.UpsamplingBilinear2d(scale_factor=2), (IMAGE,), "Only support align_corners=False."),
    "non-uniform": (
        nn.Upsample(scale_factor=(2, 3), mode="bilinear"), (IMAGE,), "Non-uniform bilinear upsampling not supported"
    ),
    "non-integer": (
        nn.Upsample(scale_factor=1.5, mode="bilinear"),
        (IMAGE,),
        "Bilinear upsampling with non-integer factor not supported",
    ),
    "LSTM layers": (nn.LSTM(3, 4, num_layers=2), (SEQUENCE,), "Only LSTM with 1 layer supported"),
    "LSTM bidirectional": (nn.LSTM(3, 4, bidirectional=True), (SEQUENCE,), "bidirectional LSTM not supported"),
    "LSTM bias": (nn.LSTM(3, 4, bias=False), (SEQUENCE,), "LSTM without biases not supported"),
    "GRU layers": (nn.GRU(3, 4, num_layers=2), (SEQUENCE,), "Only GRU with 1 layer supported"),
    "RNN layers": (nn.RNN(3, 4, num_layers=2), (SEQUENCE,), "Only RNN with 1 layer is supported"),
    "RNN bidirectional": (nn.RNN(3, 4, bidirectional=True), (SEQUENCE,), "Bidirectional RNN is not supported"),
    "RNN bias": (nn.RNN(3, 4, bias=False), (SEQUENCE,), "RNN without biases is not supported"),
    "matrix 2-norm": (lambda x: torch.linalg.matrix_norm(x, 2), (X,), "Matrix 2-norm is not supported."),
    "nuclear norm": (lambda x: torch.linalg.matrix_norm(x, "nuc"), (X,), "Matrix nuclear norm is not supported."),
    "8-bit and": (torch.bitwise_and, (SMALL, SMALL), "Poplar does not support binary operations on 8-bit"),
    "8-bit operator": (lambda a: a & a, (SMALL,), "Poplar does not support binary operations on 8-bit"),
    "lgamma": (torch.lgamma, (X.abs(),), "Unsupported ops found in compiled model"),
    "isinf method": (lambda x: x.isinf(), (X,), "Unsupported ops found in compiled model"),
    "add to a stepped slice": (_add_to_every_second, (X,), STEP),
    "fill a stepped slice": (_fill_every_second, (X,), STEP),
    "write through a view of a stepped slice": (_scale_a_view, (X,), STEP),
    "index on the host": (lambda x: x[torch.LongTensor([0, 1])], (X,), HOST + "Long"),
    "operand on the host": (lambda x: x[0, :2] + torch.FloatTensor([0, 1]), (X,), HOST + "Float"),
    "operand from numpy": (lambda x: x[0, :2] * torch.from_numpy(numpy.ones(2, bool)), (X,), HOST + "Bool"),
    "topk unsorted": (lambda x: x.topk(2, sorted=False)[0].sum(), (X,), "sorted=False is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_works_here_and_is_refused_on_request(name: str) -> None:
    function, inputs, phrase = REFUSED[name]
    poptorch.inferenceModel(Alone(function))(*inputs)
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.inferenceModel(Alone(function), poptorch.Options().strictCompatibility(True))(*inputs)


def test_ordinary_calls_pass_the_strict_checks() -> None:
    def ordinary(x: Tensor, t: Tensor) -> Any:
        return (
            F.cross_entropy(x, t),
            x.topk(2).values,
            torch.linalg.matrix_norm(x),
            F.interpolate(x[None], scale_factor=2),
            x[torch.tensor([0, 1])] + torch.ones(1) + torch.arange(6),
            x[::2] + 1,
            torch.zeros(4, 6).index_fill_(0, t[:1] // 6, 1.0),
        )

    poptorch.inferenceModel(Alone(ordinary), poptorch.Options().strictCompatibility(True))(X, CLASSES)
    poptorch.inferenceModel(nn.GRU(3, 4, bias=False), poptorch.Options().strictCompatibility(True))(SEQUENCE)
