"""What a call returns: structure, types, ownership, constants (spec: executor §7.1)."""

from __future__ import annotations

import collections
import copy
import dataclasses
import io
import pickle
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn

import poptorch


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def wrap(function, options=None):
    return poptorch.inferenceModel(Function(function), options)


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    note: str = "plain"
    inner: object = None


class Tagged(collections.OrderedDict):
    """A mapping type of the user's own."""


def equal(actual, expected):
    """The same types, keys in the same order, and values."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        narrow = {torch.int64: torch.int32, torch.float64: torch.float32}
        assert actual.dtype is narrow.get(expected.dtype, expected.dtype)
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected, check_dtype=False)
        return
    assert type(actual) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            equal(a, e)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            equal(actual[key], value)
    elif dataclasses.is_dataclass(expected):
        equal(vars(actual), vars(expected))
    else:
        assert actual == expected


STRUCTURES = {
    "one tensor": lambda x: x + 1,
    "tuple": lambda x: (x + 1, x * 2),
    "one-element tuple": lambda x: (x + 1,),
    "list": lambda x: [x + 1, x * 2],
    "nested": lambda x: (x + 1, [x * 2, (x - 1, [x]), []], ()),
    "nothing": lambda x: None,
    "None inside": lambda x: (None, x + 1, [None]),
    "dict": lambda x: {"z": x + 1, "a": x * 2, 3: [x]},
    "ordered dict": lambda x: collections.OrderedDict([("z", x + 1), ("a", x * 2)]),
    "own mapping": lambda x: Tagged([("z", x + 1), ("a", x * 2)]),
    "default dict": lambda x: collections.defaultdict(list, {"z": x + 1}),
    "named tuple": lambda x: Pair(x + 1, Pair(x, 2)),
    "torch's named tuple": lambda x: x.max(0),
    "data class": lambda x: Result(x + 1, "note", (x, None)),
    "the same tensor twice": lambda x: (lambda y: (y, y, [y]))(x * 3),
    "views of one tensor": lambda x: (lambda y: (y[0], y[1:], y.view(-1), y.t()))(x * 3),
    "the input": lambda x: x,
    "the input among others": lambda x: (x, x + 1, x, x.t()),
    "non-tensors": lambda x: (x + 1, 3, 2.5, True, "text", None, x.shape[0], torch.float32),
    "only non-tensors": lambda x: (1, "a"),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_come_back_as_written(name):
    function = STRUCTURES[name]
    executor = wrap(function)
    for seed in range(2):
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
        equal(executor(x), function(x))


def test_results_are_new_and_contiguous_and_nobody_elses():
    executor = wrap(lambda x: (x, x.t(), x + 1, x + 1, x[0]))
    x = torch.randn(3, 3)
    kept = [executor(x), executor(x)]
    tensors = [t for results in kept for t in results]
    assert all(t.is_contiguous() for t in tensors)
    assert len({t.untyped_storage().data_ptr() for t in [x, *tensors]}) == 11
    before = x.clone()
    for t in tensors:
        t.zero_()
    assert torch.equal(x, before)
    assert torch.equal(executor(x)[0], before)


def test_weights_and_buffers_are_returned_by_value():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x):
            self.b += 1
            return self.w, self.b, x

    executor = poptorch.inferenceModel(Model())
    first = executor(torch.ones(1))
    for t in first:
        t.fill_(7)
    weight, buffer, _ = executor(torch.ones(1))
    assert weight.tolist() == [1, 1]
    assert buffer.tolist() == [2, 2]
    assert not weight.requires_grad


@pytest.mark.filterwarnings("ignore:Output expected")
class TestConstants:
    def test_constants_are_never_multiplied(self):
        constant = torch.arange(3.0)
        options = poptorch.Options().deviceIterations(4)
        executor = wrap(lambda x: (x + 1, constant, torch.ones(2) * 2, [constant, 5]), options)
        for _ in range(2):
            varying, first, second, (third, number) = executor(torch.ones(4))
            assert varying.shape == (4,)
            assert torch.equal(first, constant)
            assert second.tolist() == [2, 2]
            assert torch.equal(third, constant)
            assert number == 5
            first.zero_()
        assert constant.tolist() == [0, 1, 2]

    def test_types_are_narrowed_too(self):
        result = wrap(lambda x: (x, torch.arange(3), torch.tensor([1.0], dtype=torch.float64)))(torch.ones(1))
        assert [t.dtype for t in result] == [torch.float32, torch.int32, torch.float32]

    def test_integers_that_only_pass_through_keep_their_upper_bits(self):
        """They were never on the device; given back as an argument, they have the type that they had."""
        window = torch.tensor([4, 1 << 40])
        given = wrap(lambda x: (x, window, torch.tensor(7), window.view(1, 2) + 1))(torch.ones(1))[1:]
        for found, expected in zip(given, (window, torch.tensor(7), window.view(1, 2) + 1), strict=True):
            assert found.dtype is torch.int64
            assert torch.equal(found, expected)

    def test_constants_warn_under_dispatch_only(self):
        def forward(x):
            return x, torch.ones(1)

        with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
            wrap(forward)(torch.ones(1))
        options = poptorch.Options()
        options.Jit.traceModel(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            wrap(forward, options)(torch.ones(1))

    def test_plain_attributes_repeat_their_value(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.t = torch.tensor([3.0])

            def forward(self, x):
                return x * self.t

        model = Model()
        executor = poptorch.inferenceModel(model)
        assert executor(torch.ones(1)).item() == 3
        model.t.fill_(5)
        assert executor(torch.ones(1)).item() == 3


class TestBackward:
    @pytest.mark.parametrize("wrapper", [poptorch.trainingModel, poptorch.inferenceModel])
    def test_refused_everywhere(self, wrapper):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def forward(self, x):
                y = self.fc(x)
                return {"loss": nn.functional.mse_loss(y, x), "rest": [y, (x, y + 1)]}

        result = wrapper(Model())(torch.ones(1, 2))
        for tensor in (result["loss"], *result["rest"][:1], *result["rest"][1]):
            assert type(tensor) is torch.Tensor
            with pytest.raises(poptorch.Error) as error:
                tensor.backward()
            assert error.value.message.startswith(
                "backward() cannot be called explicitly on outputs of a PopTorch model"
            )

    def test_results_are_otherwise_ordinary(self):
        result = wrap(lambda x: x + 1)(torch.ones(2))
        leaf = torch.ones(2, requires_grad=True)
        (result * leaf).sum().backward()
        assert leaf.grad.tolist() == [2, 2]
        assert type(result + 1) is torch.Tensor
        assert result.numpy().tolist() == [2, 2]
        for duplicate in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert type(duplicate) is torch.Tensor
        file = io.BytesIO()
        torch.save({"r": result}, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=True)["r"]) is torch.Tensor


def test_model_output_of_transformers():
    outputs = pytest.importorskip("transformers.modeling_outputs", reason="needs the transformers package")

    def forward(x):
        return outputs.BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x, x + 1), attentions=None)

    executor = wrap(forward, poptorch.Options().deviceIterations(2))
    for value in (1.0, 2.0):
        x = torch.full((2, 3), value)
        result = executor(x)
        assert type(result) is outputs.BaseModelOutput
        assert list(result.keys()) == ["last_hidden_state", "hidden_states"]
        assert torch.equal(result.last_hidden_state, x * 2)
        assert torch.equal(result["hidden_states"][1], x + 1)
        assert result.attentions is None


def test_passed_through_inputs_follow_each_call_in_all_modes():
    for mode, rows in [("All", 4), ("Final", 1), ("Sum", 1)]:
        options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode[mode])
        executor = wrap(lambda x, y: (y, x), options)
        for factor in (1.0, 2.0):
            x, y = torch.arange(4.0) * factor, torch.ones(4) * factor
            second, first = executor(x, y)
            expected = {"All": x, "Final": x[-1:], "Sum": x.sum(0, keepdim=True)}[mode]
            assert torch.equal(first, expected)
            assert second.shape == (rows,)


def test_outputs_can_be_copied_together():
    class Several(nn.Module):
        def forward(self, x):
            return x + 1, x.sum(), [x * 2, x - 3]

    given = torch.randn(4, 4)
    outputs = poptorch.inferenceModel(Several())(given)
    for _ in range(20):  # what was wrong depended on which ids were free
        copied = copy.deepcopy(outputs)
        for a, b in zip([*copied[:2], *copied[2]], [*outputs[:2], *outputs[2]], strict=True):
            assert torch.equal(a, b)
            assert a.data_ptr() != b.data_ptr()
    twice = copy.deepcopy([outputs[0], outputs[0]])
    assert twice[0] is twice[1]
