"""What holds for all built-in operators, and those without a value to compare: errors, types, modes, state, chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.program.opinfo import info_of


def op(name: str, *inputs: torch.Tensor, like: Any = None, version: int | None = None, **attributes: Any) -> Any:
    """An operator of ``ai.graphcore``, or, with a version, of ``ai.onnx``; the only output, or the list of them."""
    templates = [inputs[0]] if like is None else like if isinstance(like, list) else [like]
    domain = "ai.graphcore" if version is None else "ai.onnx"
    results = poptorch.custom_op(list(inputs), name, domain, version or 1, templates, attributes or None)
    return results[0] if len(results) == 1 else results


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def infer(function: Callable[..., Any], *inputs: torch.Tensor, options: Any = None) -> Any:
    model = poptorch.inferenceModel(Model(lambda s, *x: function(*x)), options)
    try:
        return model(*inputs)
    finally:
        model.destroy()


def gradients(function: Callable[..., Any], *weights: torch.Tensor) -> list[torch.Tensor]:
    """Of the sum of a function, as one step of gradient descent shows them."""
    names = [f"w{i}" for i in range(len(weights))]
    parts = {name: nn.Parameter(w.clone()) for name, w in zip(names, weights, strict=True)}

    def loss(model: nn.Module) -> torch.Tensor:
        value = function(*(getattr(model, name) for name in names))
        return poptorch.identity_loss(value.float().sum() + sum(getattr(model, n).sum() for n in names), "none")

    model = Model(loss, **parts)
    trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    trainer()
    trainer.destroy()
    return [w - getattr(model, name).detach() - 1 for name, w in zip(names, weights, strict=True)]


X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])
INTS = torch.tensor([3, 1], dtype=torch.int32)


# -- finding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "domain", "version", "phrase"),
    [
        ("Gellu", "ai.graphcore", 1, "No class for ai.graphcore.Gellu:1. Did you mean Gelu"),
        ("Gelu", "ai.graphcore", 0, "No class for ai.graphcore.Gelu:0"),
        ("Gelu", "ai.graphcore", 2, "No class for ai.graphcore.Gelu:2: Gelu has the version 1"),
        ("Softplus", "ai.graphcore", 1, "Did you mean Softplus of the domain ai.onnx"),
        ("Mod", "ai.onnx", 9, "No class for ai.onnx.Mod:9: Mod came with version 10"),
        ("Relu", "ai.onnx", 13, "No class for ai.onnx.Relu:13: the versions 6 to 11"),
        ("Loop", "ai.onnx", 10, "No class for ai.onnx.Loop:10"),
        ("GeluGrad", "ai.graphcore", 1, "No class for ai.graphcore.GeluGrad:1"),
        ("RemapCE", "ai.graphcore", 1, "No class for ai.graphcore.RemapCE:1"),
        ("Nms", "ai.graphcore", 1, "No class for ai.graphcore.Nms:1"),
        ("Call", "ai.graphcore", 1, "No class for ai.graphcore.Call:1"),
        ("Resize", "ai.graphcore", 1, "No class for ai.graphcore.Resize:1"),
        ("Gelu", "com.acme", 1, "No class for com.acme.Gelu:1"),
    ],
)  # fmt: skip
def test_unknown_names(name: str, domain: str, version: int, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase.replace(".", r"\.")) as failure:
        infer(lambda x: poptorch.custom_op([x], name, domain, version, [x]), X)
    assert "test_builtin_rules.py" in str(failure.value)


def test_an_operator_of_the_user_goes_before_a_built_in_one() -> None:
    assert infer(lambda x: op("Swish", x), torch.zeros(1)).item() == 0
    poptorch.registerCustomOp("Swish", "ai.graphcore", 1, lambda x: x + 7)
    try:
        assert infer(lambda x: op("Swish", x), torch.zeros(1)).item() == 7
    finally:
        from poptorch.ops.custom import registry

        registry.remove(registry.OperatorKey("ai.graphcore", "Swish", 1))


def test_one_version_of_onnx_in_strict_mode() -> None:
    def both(x: torch.Tensor) -> Any:
        return op("Relu", op("Relu", x, version=10), version=11)

    assert torch.equal(infer(both, X), X.relu())
    options = poptorch.Options()
    options.strictCompatibility(True)
    assert torch.equal(infer(lambda x: op("Relu", op("Relu", x, version=9), version=9), X, options=options), X.relu())
    with pytest.raises(poptorch.Error, match="Invalid opset 11 used to add an operation"):
        infer(both, X, options=options)


def test_outside_of_a_model_there_are_zeros() -> None:
    assert op("Gelu", X).tolist() == [[0.0] * 3] * 2


# -- attributes --------------------------------------------------------------------------------------------------------


def test_kinds_of_attributes_are_converted() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert infer(lambda v: op("Scale", v, scale=2), x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert infer(lambda v: op("Reverse", v, dimensions=[1.0]), x).tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert infer(lambda v: op("ReduceSum", v, version=10, axes=[1], keepdims=0.0), x).tolist() == [3.0, 7.0]
    assert infer(lambda v: op("ReduceSum", v, version=10, axes=(1,), keepdims=False), x).tolist() == [3.0, 7.0]
    assert infer(lambda v: op("Softmax", v, version=10, axis="last"), torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "phrase"),
    [
        (lambda x: op("Scale", x, scale="two"), "'scale' must be of kind Float, not String"),
        (lambda x: op("Subsample", x, strides=[1.5, 1.0]), "'strides' must be of kind Ints, not Floats"),
        (lambda x: op("Subsample", x, strides=2), "'strides' must be of kind Ints, not Int"),
        (lambda x: op("Subsample", x), "no attribute key strides"),
        (lambda x: op("L1", x, reduction="Sum"), "no attribute key lambda"),
        (lambda x: op("IdentityLoss", x, reduction="sum"), "Unexpected ReductionType string, sum. Cannot convert to "),
        (lambda x: op("L1", x, reduction="Max", **{"lambda": 1.0}), "Unexpected ReductionType string, Max"),
    ],
)  # fmt: skip
def test_wrong_attributes(call: Callable[..., Any], phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        infer(call, X)


def test_hints_and_unknown_attributes_change_nothing() -> None:
    result = infer(
        lambda x: op(
            "MatMul", x, x.t(), version=10, __available_memory=0.2, __partials_type="half", __ipu_number=0, other=1
        ),
        X,
    )
    torch.testing.assert_close(result, X @ X.t())


def test_available_memory_is_a_hint_for_the_planner() -> None:
    call = lambda s, x: op("MatMul", x, x.t(), version=10, __available_memory=0.25)  # noqa: E731
    model = poptorch.inferenceModel(Model(call))
    model(X)
    (product,) = (n for n in model.program.operations() if "mm" in str(n.target))
    assert info_of(product).available_memory == 0.25


# -- outputs -----------------------------------------------------------------------------------------------------------


def test_numbers_of_outputs() -> None:
    values = infer(lambda x: op("Sort", x, like=[x]), X)
    assert torch.equal(values, X.sort().values)
    with pytest.raises(poptorch.Error, match="has 2 outputs, but example_outputs has 3"):
        infer(lambda x: op("Sort", x, like=[x, x, x]), X)
    with pytest.raises(poptorch.Error, match="takes 1 inputs, but got 2"):
        infer(lambda x: op("Gelu", x, x), X)
    with pytest.raises(poptorch.Error, match="takes at least 1 inputs, but got 0"):
        infer(lambda x: poptorch.custom_op([], "Sum", "ai.onnx", 10, [x]), X)


def test_integers_have_32_bits_unless_the_example_has_64() -> None:
    """Inside of the model; what leaves it has 32 bits, as always."""
    seen = []

    def forward(x: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        for kind in (torch.int32, torch.int64):
            example = torch.empty(2, dtype=kind)
            seen.append(op("ArgMax", x, like=example, version=10, axis=1, keepdims=0).dtype)
            seen.append(op("BitwiseNot", wide, like=example).dtype)
        return op("BitwiseNot", wide)

    assert infer(forward, X, torch.tensor([5, -3])).tolist() == [-6, 2]
    assert seen == [torch.int32, torch.int32, torch.int64, torch.int64]


def test_the_example_does_not_decide_shape_and_type() -> None:
    result = infer(lambda x: op("ReduceSum", x, like=torch.empty(7, 7, dtype=torch.float16), version=10), X)
    assert (result.shape, result.dtype) == (torch.Size([1, 1]), torch.float32)


HALVES: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
    ("Gelu", lambda x: op("Gelu", x), lambda x: nn.functional.gelu(x, approximate="tanh")),
    ("Softmax", lambda x: op("Softmax", x, version=10), lambda x: x.softmax(1)),
    ("L1", lambda x: op("L1", x, reduction="Mean", **{"lambda": 2.0}), lambda x: 2 * x.abs().mean()),
    ("GroupNormalization", lambda x: op("GroupNormalization", x, torch.ones(3).half(), torch.zeros(3).half(),
        num_groups=1), lambda x: nn.functional.layer_norm(x, (3,))),
    ("BatchNormalization", lambda x: op("BatchNormalization", x.reshape(2, 3, 1), *[torch.ones(3).half()] * 4),
        lambda x: ((x - 1) / (1 + 1e-5) ** 0.5 + 1).reshape(2, 3, 1)),
    ("Bucketize", lambda x: op("Bucketize", x, torch.tensor([0.0, 1.0]).half()),
        lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0]).to(x.dtype))),
    ("Histogram", lambda x: op("Histogram", x, levels=[0.0, 1.0], absoluteOfInput=0),
        lambda x: torch.tensor([2, 2, 2])),
    ("TopK", lambda x: op("TopK", x, torch.tensor([2]), like=[x], version=10), lambda x: x.topk(2).values),
    ("LRN", lambda x: op("LRN", x.reshape(2, 3, 1), version=10, size=3),
        lambda x: nn.functional.local_response_norm(x.reshape(2, 3, 1), 3)),
    ("AveragePool", lambda x: op("AveragePool", x.reshape(1, 2, 3), version=10, kernel_shape=[2], pads=[0, 1]),
        lambda x: torch.stack([(x[:, 0] + x[:, 1]) / 2, (x[:, 1] + x[:, 2]) / 2, x[:, 2]], 1).reshape(1, 2, 3)),
    ("ScatterReduce", lambda x: op("ScatterReduce", x, INTS[[1, 1, 0]] - 1, axis_size=3, reduction="max"),
        lambda x: torch.stack([x[:, :2].amax(1), x[:, 0] * 0, x[:, 2]], 1)),
    ("Fmod", lambda x: op("Fmod", x, torch.full((1,), 0.75).half()), lambda x: torch.fmod(x, 0.75)),
    ("ReduceLogSumExp", lambda x: op("ReduceLogSumExp", x, version=10), lambda x: torch.logsumexp(x, (0, 1), True)),
    ("Resize", lambda x: op("Resize", x, torch.tensor([1.0, 2.0]), version=10), lambda x: x.repeat_interleave(2, 1)),
    ("SplineWeighting", lambda x: op("SplineWeighting", x, torch.ones(2, 3, 1).half(), torch.ones(2, 1).half(),
        INTS[:, None] - 1 - INTS[:, None] // 2), lambda x: x.sum(1, True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "meaning"), HALVES, ids=[h[0] for h in HALVES])
def test_half_precision(name: str, call: Callable[..., Any], meaning: Callable[..., Any]) -> None:
    result = infer(lambda x: call(x), X.half())
    result = result[0] if isinstance(result, (list, tuple)) else result
    expected = meaning(X.half().float())
    assert result.dtype is (torch.float16 if expected.is_floating_point() else torch.int32)
    torch.testing.assert_close(result.float(), expected.float(), rtol=5e-3, atol=5e-3)


def test_sums_of_halves_do_not_overflow() -> None:
    x = torch.full((400,), 400.0).half()
    result = infer(lambda v: op("L1", v, reduction="Mean", **{"lambda": 1.0}), x)
    assert result.item() == 400


# -- constants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x, n: op("Reshape", x, n, version=10), "shape"),
        (lambda x, n: op("Tile", x, n, version=10), "repeats"),
        (lambda x, n: op("Expand", x, n, version=10), "shape"),
        (lambda x, n: op("Slice", x, n, n, version=10), "starts"),
        (lambda x, n: op("TopK", x, n[:1], version=10), "k"),
        (lambda x, n: op("OneHot", n, n[:1], x[0, :2], version=10), "depth"),
        (lambda x, n: op("Pad", x, n, version=11), "pads"),
        (lambda x, n: op("Resize", x, n.float(), version=10), "scales"),
        (lambda x, n: op("ConstantOfShape", n, version=10), "shape"),
        (lambda x, n: op("CumSum", x, n[0], version=11), "axis"),
    ],
)  # fmt: skip
def test_what_decides_a_shape_is_constant(call: Callable[..., Any], what: str) -> None:
    with pytest.raises(poptorch.Error, match=f"Need the value of the {what} input"):
        infer(call, X, INTS)


def test_constants_may_be_computed(recwarn: pytest.WarningsRecorder) -> None:
    def forward(x: torch.Tensor) -> Any:
        size = op("Shape", x, like=torch.empty(2, dtype=torch.int64), version=10)
        half = torch.cat([size[:1], size[1:] // 3, torch.tensor([-1])])
        return op("Reshape", x, half, version=10)

    assert infer(forward, X).shape == (2, 1, 3)
    assert not [w for w in recwarn if "frozen" in str(w.message)]


def test_constants_of_a_body(recwarn: pytest.WarningsRecorder) -> None:
    def forward(x: torch.Tensor) -> Any:
        def body(t: torch.Tensor) -> list[torch.Tensor]:
            return [op("Reshape", op("Clip", t + 1, torch.tensor(0.0), version=11), torch.tensor([2, 3]), version=10)]

        return poptorch.for_loop(2, body, [x])[0]

    torch.testing.assert_close(infer(forward, X), ((X + 1).clamp(min=0) + 1).clamp(min=0))
    assert not [w for w in recwarn if "frozen" in str(w.message)]


# -- errors of single operators ----------------------------------------------------------------------------------------

ERRORS: list[tuple[Callable[..., Any], str]] = [
    (lambda x: op("L1", x.sum(), reduction="Sum", **{"lambda": 1.0}), r"L1Op not valid for rank-0 tensor \(scalar\)"),
    (lambda x: op("Nll", x, INTS[:1], reduction="Sum"), "must have shape"),
    (lambda x: op("Nll", x, x[:, 0], reduction="Sum"), "to be an integer data type"),
    (lambda x: op("Nll", x.sum(), INTS, reduction="Sum"), "Invalid shape for prob tensor"),
    (lambda x: op("Ctc", x, INTS, INTS, INTS, reduction="Sum", blank=0, outDataType=0), "Unsupported shape for input"),
    (lambda x: op("CtcBeamSearchDecoder", x[None], INTS, beam_width=1, top_paths=2), "top_paths"),
    (lambda x: op("BinaryConstScalar", x, value=1.0, op="Max", scalar_in_index=0), "Unrecognised opType"),
    (lambda x: op("BitwiseAnd", x, x), "not supported"),
    (lambda x: op("ShapedDropout", x, shape=[3], ratio=1.0),
        r"is not valid. Please use a value in the interval \[0,1\)"),
    (lambda x: op("ShapedDropout", x, shape=[2], ratio=0.5),
        "ShapedDropout: incompatible input tensor and dropout shape"),
    (lambda x: op("DepthToSpace", x.reshape(1, 6, 1, 1), blocksize=1, mode="ABC"), "Unrecognised DepthToSpaceMode"),
    (lambda x: op("Reshape", x, shape=[-2, 3]), "cannot be smaller than -1."),
    (lambda x: op("Reshape", x, shape=[-1, -1]), "can only use -1 to specify one unknown dimension"),
    (lambda x: op("Reshape", x, shape=[-1, 4]), "Incompatible inferred dimension"),
    (lambda x: op("Reverse", x, dimensions=[-1]), "Only positive dimensions are supported"),
    (lambda x: op("Reverse", x, dimensions=[0, 0]), "twice"),
    (lambda x: op("Slice", x, starts=[0], ends=[1], axes=[2]), "outside the acceptable range"),
    (lambda x: op("Subsample", x, strides=[1, 0]), "Strides invalid. 0 stride at index 1"),
    (lambda x: op("GroupedGather", x, INTS, axis=2), "outside the acceptable range"),
    (lambda x: op("GroupedGather", x, INTS, group_size=2), "indicates the dimension of the group"),
    (lambda x: op("ScatterReduce", x, INTS, axis_size=0), "axis_size = 0 must be > 0"),
    (lambda x: op("ScatterReduce", x, INTS, axis_size=2, group_size=0), "group_size = 0 must be > 0"),
    (lambda x: op("ScatterReduce", x, INTS, axis_size=2, enable_index_broadcast=2), "= 2 must be either 0 or 1"),
    (lambda x: op("ScatterReduce", x, INTS, axis_size=2), "Partial broadcasting of indices is not"),
    (lambda x: op("ScatterReduce", x, INTS, axis_size=2, axis=2), "outside the acceptable range"),
    (lambda x: op("Sort", x, descending=2), "must be either 0 or 1"),
    (lambda x: op("Histogram", INTS, levels=[1.0], absoluteOfInput=0), "is not supported"),
    (lambda x: op("Bucketize", x, x), "boundaries tensor is not a 1-D tensor"),
    (lambda x: op("Bucketize", x, INTS), "different data types"),
    (lambda x: op("Bucketize", x, x[0], right=3), "right = 3 must be either 0 or 1"),
    (lambda x: op("GroupNormalization", x, num_groups=1), "takes 3 inputs"),
    (lambda x: op("BatchNormalization", x, *[x[0]] * 4), "batch norm requires X to have a rank >= 3"),
    (lambda x: op("LSTM", x, x), "Bad input shape"),
    (lambda x: op("LSTM", x[None], x[None]), "Bad weights shape"),
    (lambda x: op("NormalizeImage", x[:, :2], x[0], x[0]), "requires the inner dimension to be 3."),
    (lambda x: op("NormalizeImage", x, x[0], x[0], scale=0.0), "scale should be greater than 0."),
    (lambda x: op("SplineBasis", x[0], INTS, INTS), "tensor is not a 2-D tensor"),
    (lambda x: op("SplineBasis", x, x[:, :2].int(), INTS), "tensor is not a 1-D tensor"),
    (lambda x: op("SplineBasis", x[:, :2], INTS, INTS, degree=4), "is not valid: must be between 0 and 3."),
    (lambda x: op("SplineWeighting", x, x[None], x.half(), INTS[:, None]), "different data types"),
    (lambda x: op("ZerosLike", x > 0), "Unsupported data type requested"),
    (lambda x: op("Zeros", like=x, shape=[1], dtype=3), "takes 0 inputs|Unsupported data type requested"),
    (lambda x: op("Abort", x, like=[]), "Conditional abort op can only test a scalar tensor"),
    (lambda x: op("AllReduce", x, x, ipus=[0, 1]), "number of inputs does not equal number of outputs"),
    (lambda x: op("AllReduce", x, ipus=[0, 1]), "number of ipus does not equal"),
    (lambda x: op("Mod", x, x, version=10, fmod=2), "fmod must be 0 or 1"),
    (lambda x: op("LSTM", x[None], x[None], x[None], version=10, clip=1.0), "attribute 'clip' is not supported"),
    (lambda x: op("RNN", x[None], x[None], x[None], version=10, activation_alpha=[1.0]), "'activation_alpha'"),
    (lambda x: op("GRU", x[None], x[None], x[None], version=10, activations=["Tanh"]), "'activations' is not"),
    (lambda x: op("LSTM", x[None], x[None], x[None], version=10, direction="reverse"), "'direction' is not supported"),
    (lambda x: op("RandomNormal", like=x, version=10, shape=[2], seed=1.0), "takes 0 inputs|'seed' is not supported"),
    (lambda x: op("Cast", x, version=10, to="float"), "not the ONNX number of a type"),
    (lambda x: op("Add", x, x[0], version=6), "attribute 'broadcast' is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "phrase"), ERRORS, ids=[f"{i}-{p[:24]}" for i, (_, p) in enumerate(ERRORS)])
def test_errors(call: Callable[..., Any], phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        infer(call, X)


# -- gradients that are special ----------------------------------------------------------------------------------------


def test_probabilities_near_zero_have_a_gradient() -> None:
    p = torch.tensor([[0.0, 1e-9, 1.0]])
    (gradient,) = gradients(lambda v: op("Nll", v, torch.tensor([1]), reduction="Sum"), p)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -1e9, 0.0]]), rtol=1e-4, atol=0)
    loss = infer(lambda v: op("Nll", v, torch.tensor([1]), reduction="Sum"), p)
    torch.testing.assert_close(loss, -torch.tensor(1e-7).log())


def test_a_detached_operator_lets_no_gradient_pass() -> None:
    assert gradients(lambda v: op("Detach", v) * v, torch.tensor([3.0]))[0].item() == 3
    assert gradients(lambda v: op("Round", v), torch.tensor([3.2]))[0].item() == 0


def test_equal_maxima_share_no_gradient() -> None:
    """Each source that equals the winner gets all of it."""
    index = torch.tensor([0, 0, 1])
    found = gradients(
        lambda v: op("ScatterReduce", v, index, axis_size=2, axis=0, reduction="max"), torch.tensor([2.0, 2.0, 5.0])
    )
    assert found[0].tolist() == [1.0, 1.0, 1.0]


# -- chance ------------------------------------------------------------------------------------------------------------


def test_dropped_elements_and_their_gradient() -> None:
    w = torch.ones(40, 50)
    (gradient,) = gradients(lambda v: op("ShapedDropout", v, shape=[50], ratio=0.25), w)
    assert (gradient == gradient[0]).all()  # one mask for all rows
    torch.testing.assert_close(gradient.unique(), torch.tensor([0.0, 4 / 3]))
    (gradient,) = gradients(lambda v: op("Dropout", v, version=10, ratio=0.5), w)
    torch.testing.assert_close(gradient.unique(), torch.tensor([0.0, 2.0]))
    assert 0.4 < (gradient > 0).float().mean() < 0.6


def test_nothing_is_dropped_in_inference() -> None:
    results = infer(lambda x: [op("ShapedDropout", x, shape=[3]), *op("Dropout", x, like=[x, x > 0], version=10)], X)
    assert torch.equal(results[0], X)
    assert torch.equal(results[1], X)
    assert results[2].all()


@pytest.mark.parametrize(("name", "settings", "mean", "deviation"), [
    ("RandomNormal", {"mean": 3.0, "scale": 2.0}, 3.0, 2.0), ("RandomUniform", {"low": -1.0, "high": 3.0}, 1.0, 1.155),
])  # fmt: skip
def test_random_numbers(name: str, settings: dict[str, float], mean: float, deviation: float) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        (free,) = poptorch.custom_op([], name, "ai.onnx", 10, [x], {"shape": [4000], **settings})
        return [
            free,
            op(f"{name}Like", x, version=10, **settings),
            op(f"{name}Like", x, version=10, dtype=10, **settings),
        ]

    model = poptorch.inferenceModel(Model(lambda s, x: forward(x)))
    first, second = model(torch.zeros(4000)), model(torch.zeros(4000))
    for values in first:
        assert abs(values.float().mean() - mean) < 0.15
        assert abs(values.float().std() - deviation) < 0.15
    assert [v.dtype for v in first] == [torch.float32, torch.float32, torch.float16]
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])


# -- effects -----------------------------------------------------------------------------------------------------------


def test_programs_stop_themselves() -> None:
    model = poptorch.inferenceModel(
        Model(lambda s, x: (poptorch.custom_op([x[0] < 0], "Abort", "ai.graphcore", 1, []), x + 1)[1])
    )
    assert model(torch.ones(1)).tolist() == [2.0]
    with pytest.raises(poptorch.Error, match="stopped by an Abort operator, whose condition is true"):
        model(-torch.ones(1))
    assert model(torch.ones(1)).tolist() == [2.0]
    with pytest.raises(poptorch.Error, match="stopped by an Abort operator"):
        infer(lambda x: (poptorch.custom_op([], "Abort", "ai.graphcore", 1, []), x + 1)[1], X)


def test_variables_are_written() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.last.clone()
            return op("CopyVarUpdate", self.last, x + before) * 2 + self.last

    model = poptorch.inferenceModel(Counter())
    assert model(torch.ones(3)).tolist() == [3.0] * 3
    assert model(torch.ones(3)).tolist() == [6.0] * 3
    with pytest.raises(poptorch.Error, match="must be a buffer"):
        infer(lambda x: op("CopyVarUpdate", x + 1, x), X)


def test_prints_and_their_gradients(capfd: pytest.CaptureFixture[str]) -> None:
    gradients(lambda v: op("PrintTensor", v, title="seen", digits=4, floatFormat=1, openBracket=40), torch.ones(2))
    printed = capfd.readouterr().err
    assert "seen: (1.000 1.000]" in printed
    assert "seen_gradient: (1.000 1.000]" in printed


def test_float8() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        small = op("Pow2ScaleThenCast", x, torch.tensor([1]), to="FLOAT8_143")
        return op("CastThenPow2Scale", small, torch.tensor([-1]), to="FLOAT16")

    x = torch.tensor([0.1, 1.0, 3.3, 1000.0]).half()
    expected = (x.float() * 2).clamp(-240, 240).to(torch.float8_e4m3fnuz).float() / 2
    assert torch.equal(infer(forward, x), expected.half())


# -- programs ----------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """As users of the original write it: products, norms and losses by name, several outputs, on one or two IPUs."""

    def __init__(self, by_name: bool, last_ipu: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.by_name, self.last_ipu = by_name, last_ipu
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.scale, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> Any:
        with poptorch.Block("first", ipu_id=0):
            h = self.first(x)
            if self.by_name:
                h, _, _ = op("GroupNormalization", h, self.scale, self.bias, like=[h, h[0], h[0]], num_groups=2)
                h = op("Swish", op("Gelu", h))
            else:
                h = nn.functional.group_norm(h, 2, self.scale, self.bias)
                h = nn.functional.silu(nn.functional.gelu(h, approximate="tanh"))
        with poptorch.Block("second", ipu_id=self.last_ipu):
            out = self.second(h)
            if self.by_name:
                top, place = op("TopK", out, torch.tensor([2]), like=[out[:, :2], label[:, None]], version=10)
                loss = op("Nll", op("Softmax", out, version=10), label, like=out[0, 0], reduction="Mean")
            else:
                top, place = out.topk(2)
                loss = nn.functional.nll_loss(out.log_softmax(1), label)
            return top, place, poptorch.identity_loss(loss, "none")


@pytest.mark.parametrize("level", ["interpret", "native"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("last_ipu", [0, 1])
def test_a_network_in_names(level: str, replicas: int, last_ipu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if level == "native" and (replicas, last_ipu) != (2, 1):
        pytest.skip("compiling takes long")
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    x, label = torch.randn(24 * replicas, 6), torch.randint(0, 4, (24 * replicas,))
    results = []
    for by_name in (True, False):
        model = Network(by_name, last_ipu)
        options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
        options.Training.gradientAccumulation(3)
        trainer = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
        outputs = [trainer(x, label) for _ in range(3)]
        trainer.destroy()
        results.append((outputs, [p.detach() for p in model.parameters()]))
    (named, weights), (plain, expected) = results
    for one, other in zip(named, plain, strict=True):
        assert [t.dtype for t in one] == [t.dtype for t in other]
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    for a, b in zip(weights, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
