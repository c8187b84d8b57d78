"""What a static program cannot do, said in the words that existing programs and tests look for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_samples import Alone, bools, ints, normal
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums

X = normal(4, 6)
ONE = torch.tensor([1])


def run(function: Callable[..., Any], *inputs: Tensor, options: poptorch.Options | None = None) -> Any:
    return poptorch.inferenceModel(Alone(function), options)(*inputs)


def _in_vain(x: Tensor) -> None:
    x.exp().sum()


MASKS = "Indexing using boolean or byte tensor masks is unsupported"
EMPTY = "Zero-sized tensors are unsupported"
COMPLEX = torch.zeros(2, dtype=torch.complex64)
SIZE = "The size of the sliced tensor must be a constant for each execution"
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "read by mask": (lambda x, m: x[m], (X, bools(4, 6)), MASKS),
    "read by byte mask": (lambda x, m: x[m], (X, bools(4, 6).to(torch.uint8)), MASKS),
    "read by row mask": (lambda x, m: x[m], (X, bools(4)), MASKS),
    "read by comparison": (lambda x: x[x > 0], (X,), MASKS),
    "masked_select": (lambda x, m: x.masked_select(m), (X, bools(4, 6)), MASKS),
    "nonzero": (lambda x: x.nonzero(), (X,), r"nonzero\(\) is unsupported because it would produce dynamic"),
    "unique": (torch.unique, (X,), "Unsupported ops found in compiled model: "),
    "zero-sized": (lambda x: x * 2, (torch.zeros(0, 2, 5, 5),), EMPTY + r" \(Got shape \[0, 2, 5, 5\]\)"),
    "zero-sized inside": (lambda x: x.sum(), (torch.zeros(3, 0),), EMPTY + r" \(Got shape \[3, 0\]\)"),
    "complex input": (lambda x: x * 2, (COMPLEX,), "Unsupported input type torch.complex64"),
    "complex result": (torch.fft.fft, (X,), "Returning a torch.complex64 is not supported"),
    "one_hot": (F.one_hot, (ints(0, 4, 3),), "OneHot num classes must be specified and must be constant."),
    "bincount": (torch.bincount, (ints(0, 4, 9),),
        "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 platform the minimum length is "
        "also the maximum length"),
    "gelu": (lambda x: F.gelu(x, approximate="wild"), (X,), "Unknown GELU approximate"),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(0, i, x, "wild"),
        (X, ints(0, 4, 4, 6)),
        "Unsupported reduction type for scatter_reduce",
    ),
    "step": (lambda x: x[::-1], (X,), "Slicing step must be at least 1"),
    "slice of nothing": (lambda x, s: x[s:s], (X, ONE), "The start and end of a slice must be different."),
    "slice backwards": (lambda x, s: x[s + 2 : s], (X, ONE),
        "Taking a slice of a tensor with the end less than the start is not supported"),
    "slice not a factor": (
        lambda x, s: x[s : s + 7],
        (normal(8), ONE),
        r"The size of the slice \(7\) must be a factor of the slicing dimension \(8\).",
    ),
    "slice of varying size": (lambda x, s: x[s : 2 * s], (X, ONE), SIZE),
    "slice to the end": (lambda x, s: x[s:], (X, ONE), SIZE),
    "slice from the start": (lambda x, s: x[:s], (X, ONE), SIZE),
    "slice by two tensors": (lambda x, s, t: x[s:t], (X, ONE, ONE + 2), SIZE),
    "slice with a float": (lambda x, s: x[s.int() : s + 2.5], (X, ONE),
        "The size of the sliced tensor must be a constant for each execution of the model when running on the IPU. In "
        "this case, there is a float added to the slice indices meaning it may change between runs."),
    "nothing computed": (_in_vain, (X,), "All operations in the main graph were pruned, nothing to compute"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_the_expected_words(name: str) -> None:
    function, inputs, phrase = REFUSED[name]
    with pytest.raises(poptorch.Error, match=phrase):
        run(function, *inputs)


BITS: tuple[Callable[..., Any], ...] = (
    torch.bitwise_and,
    torch.bitwise_not,
    lambda x: x & x,
    lambda x: x | 1,
    lambda x: ~x,
    lambda x: 3 ^ x,
)


@pytest.mark.parametrize("function", BITS)
def test_bitwise_on_floats_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(poptorch.Error, match="supports only bool and integer types"):
        run(lambda x: function(x, x) if function is torch.bitwise_and else function(x), X)


@pytest.mark.parametrize(("shifts", "dims"), [((1, 2), 0), (1, (0, 1)), (1, 5)])
def test_roll_refuses_in_the_words_of_pytorch(shifts: Any, dims: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)) as native:
        torch.roll(X, shifts, dims)
    with pytest.raises(type(native.value)) as ours:
        run(lambda x: torch.roll(x, shifts, dims), X)
    assert str(ours.value).startswith(str(native.value))


def test_roll_without_dims() -> None:
    expected = torch.roll(X, 3)
    assert torch.equal(run(lambda x: x.roll(3, None), X), expected)
    assert torch.equal(run(lambda x: torch.roll(x, 3, dims=None), X), expected)


def test_a_mask_is_also_refused_as_torch_does() -> None:
    with pytest.raises(DynamicOutputShapeException) as refused:
        run(lambda x: x[x > 0], X)
    assert isinstance(refused.value, poptorch.Error)
    assert "aten.nonzero" in str(refused.value.func) or "aten.index" in str(refused.value.func)
    assert refused.value.message.startswith(MASKS)


def test_ctc_loss_takes_lists() -> None:
    log_probs, targets = torch.randn(6, 2, 5).log_softmax(2), torch.randint(1, 5, (2, 3))

    def loss(p: Tensor, t: Tensor) -> Tensor:
        return F.ctc_loss(p, t, [6, 5], (3, 2))

    torch.testing.assert_close(run(loss, log_probs, targets), loss(log_probs, targets))


BOOLS, INTS = bools(2, 3), ints(0, 2, 2, 3)
WRONG_TYPES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "difference of bools": (lambda a, b: a - b, (BOOLS, BOOLS)),
    "negative bool": (lambda a: -a, (BOOLS,)),
    "one minus bool": (lambda a: 1 - a, (BOOLS,)),
    "softmax of integers": (lambda a: F.softmax(a, -1), (INTS,)),
    "float labels": (F.cross_entropy, (normal(2, 3), torch.zeros(2))),
    "narrow labels": (F.cross_entropy, (normal(2, 3), torch.zeros(2, dtype=torch.int32))),
    "float index": (lambda a, i: a.index_select(0, i), (normal(2, 3), torch.zeros(2))),
    "product of float and integer": (lambda a, b: a @ b.t(), (normal(2, 3), INTS)),
    "integer weights": (lambda x, w: F.conv1d(x, w), (normal(1, 2, 3), ints(0, 2, 2, 2, 1))),
    "integer target": (lambda a, b: F.binary_cross_entropy(a.sigmoid(), b), (normal(2, 3), INTS)),
    "relu of bools": (F.relu, (BOOLS,)),
    "gelu of integers": (F.gelu, (INTS,)),
    "argmax of bools": (lambda a: a.argmax(), (BOOLS,)),
    "largest of bools": (lambda a: a.topk(1)[0], (BOOLS,)),
    "shifted floats": (lambda a: a << 1, (normal(2, 3),)),
    "weights that are integers": (lambda a: torch.multinomial(a, 1), (INTS,)),
    "large, too": (lambda a: a - a, (torch.ones(100, 100, dtype=torch.bool),)),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_types_without_a_kernel_are_refused_when_compiling(name: str) -> None:
    function, inputs = WRONG_TYPES[name]
    with pytest.raises((RuntimeError, TypeError)) as native:
        function(*inputs)
    with pytest.raises(type(native.value)) as ours:
        poptorch.inferenceModel(Alone(function)).compile(*inputs)
    assert str(ours.value).startswith(str(native.value))


def test_a_late_refusal_names_the_line() -> None:
    def forward(a: Tensor) -> Tensor:
        return F.gelu(a)

    line = forward.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match=rf"not implemented for 'Int'.*{__file__}:{line}"):
        run(forward, INTS.int())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x @ x,
        lambda x: x.view(5),
        lambda x: x + x[:, :2],
        lambda x: torch.cat([x, x[:, :2]]),
        lambda x: x.nothing,
        lambda x: torch.add("one", x),
        lambda x: torch.where(x, x, x, x),
        lambda x: x.sum(dim=7),
        lambda x: F.linear(x, x[:, :2]),
        lambda x: x.index_select(0, x),
    ],
)
def test_wrong_calls_read_as_in_eager(wrong: Callable[..., Any]) -> None:
    with pytest.raises(Exception) as native:
        wrong(X)
    with pytest.raises(type(native.value)) as ours:
        run(wrong, X)
    assert str(ours.value).startswith(str(native.value))
    assert "Fake" not in str(ours.value)


def test_a_zero_sized_parameter_is_refused() -> None:
    with pytest.raises(poptorch.Error, match="Zero-sized tensors are unsupported"):
        poptorch.inferenceModel(nn.Linear(0, 3))(X)


def test_a_refusal_leaves_the_executor_usable() -> None:
    model = poptorch.inferenceModel(Alone(lambda x: x[x > 0] if x.ndim == 2 else x * 2))
    with pytest.raises(poptorch.Error, match=MASKS):
        model(X)
    assert_close_sums(model(X[0]).as_subclass(Tensor), X[0] * 2, terms=1)


def test_bincount_complains_about_values_that_do_not_fit() -> None:
    model = poptorch.inferenceModel(Alone(lambda i: torch.bincount(i, minlength=3)))
    assert model(torch.tensor([0, 2, 2])).tolist() == [1, 0, 2]
    with pytest.raises(poptorch.Error, match="does not fit"):
        model(torch.tensor([0, 2, 5]))


class _ReadsByMask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0].sum()


class _FindsUnique(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x).sum()


@pytest.mark.parametrize("model", [_ReadsByMask(), _FindsUnique()], ids=lambda m: type(m).__name__)
def test_shapes_that_depend_on_values_are_refused_with_the_line(model: nn.Module) -> None:
    line = type(model).forward.__code__.co_firstlineno + 1
    with pytest.raises(poptorch.Error, match=f"{__file__}:{line}"):
        poptorch.inferenceModel(model)(X)
