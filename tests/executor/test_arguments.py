"""Call arguments: binding, accepted types, normalisation, consistency, changes in place (spec: executor §5)."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


class Function(nn.Module):
    """A module made of a function; the function's own signature is the signature of ``forward``."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def wrap(function, options=None):
    return poptorch.inferenceModel(Function(function), options)


def ones(*shape):
    return torch.ones(*shape)


def traced():
    options = poptorch.Options()
    options.Jit.traceModel(True)
    return options


class TestBinding:
    @staticmethod
    def three(a, b, c=torch.tensor([5.0])):
        return a + 10 * b + 100 * c

    @pytest.mark.parametrize(
        ("args", "kwargs", "exception", "phrase"),
        [
            ((1, 1, 1, 1), {}, AssertionError, "Too many arguments provided"),
            ((1, 1, 1), {"d": 1}, AssertionError, "Too many arguments provided|is not a valid parameter"),
            ((1,), {"d": 1}, AssertionError, "d is not a valid parameter"),
            ((1, 1), {"b": 1}, AssertionError, "b was passed more than once"),
            ((1, 1), {"a": 1}, AssertionError, "a was passed more than once"),
            ((1,), {}, poptorch.Error, "Mandatory parameter b missing"),
            ((), {"b": 1}, poptorch.Error, "Mandatory parameter a missing"),
            ((1,), {"c": 1}, poptorch.Error, "Mandatory parameter b missing"),
        ],
    )
    def test_wrong_calls_are_refused_before_and_after_compile(self, args, kwargs, exception, phrase):
        executor = wrap(self.three)
        for compiled in (False, True):
            for use in (executor, wrap(self.three).compile):
                with pytest.raises(exception, match=phrase):
                    use(*[ones(1) for _ in args], **{k: ones(1) for k in kwargs})
            assert executor.isCompiled() is compiled
            assert executor(ones(1), ones(1)).item() == 511

    def test_keywords_in_any_order_and_tensor_defaults_on_one_executable(self):
        executor = wrap(self.three)
        one, two, three = (torch.tensor([float(i)]) for i in (1, 2, 3))
        assert executor(one, two).item() == 521
        assert executor(b=two, a=one).item() == 521
        assert executor(one, c=three, b=two).item() == 321
        assert executor(c=three, b=two, a=one).item() == 321
        assert executor(one, two, three).item() == 321
        assert executor(two, one).item() == 512

    def test_no_inputs(self):
        class Counter(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(1))

            def forward(self):
                self.count += 1
                return self.count

        executor = poptorch.inferenceModel(Counter())
        assert [executor().item() for _ in range(3)] == [1, 2, 3]

    def test_no_inputs_and_no_output(self):
        class Counter(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(1))

            def forward(self):
                self.count += 1

        model = Counter()
        executor = poptorch.inferenceModel(model)
        assert [executor() for _ in range(3)] == [None] * 3
        executor.copyWeightsToHost()
        assert model.count.item() == 3

    def test_variadic_positionals(self):
        executor = wrap(lambda x, *rest, factor=2.0: (x + sum(rest)) * factor)
        assert executor(ones(1), ones(1), ones(1)).item() == 6
        with pytest.raises(
            poptorch.Error, match="Number of positional arguments mismatch: expected 3 arguments but got 2"
        ):
            executor(ones(1), ones(1))
        with pytest.raises(poptorch.Error, match=re.escape("Shape mismatch for *args[1]")):
            executor(ones(1), ones(1), ones(2))
        with pytest.raises(poptorch.Error, match=r"Value mismatch for factor: expected 2.0 but got 3.0"):
            executor(ones(1), ones(1), ones(1), factor=3.0)
        executor.destroy()
        assert executor(ones(1), factor=4.0).item() == 4

    def test_named_extras(self):
        executor = wrap(lambda x, **named: x + named["a"] * 10 + named["b"] * 100)
        one, two, three = (torch.tensor([float(i)]) for i in (1, 2, 3))
        assert executor(one, a=two, b=three).item() == 321
        assert executor(one, b=three, a=two).item() == 321
        assert executor(b=three, x=one, a=two).item() == 321
        with pytest.raises(poptorch.Error, match=r"Keys mismatch for .*Missing arguments: b\.") as error:
            executor(one, a=two)
        assert "destroy()" in str(error.value)
        with pytest.raises(poptorch.Error, match=r"Missing arguments: a, b\. Unexpected arguments: c, d\."):
            executor(one, d=two, c=two)

    def test_keyword_only_parameters(self):
        def forward(x, *, scale, offset=torch.tensor([1.0])):
            return x * scale + offset

        executor = wrap(forward)
        with pytest.raises(poptorch.Error, match="Mandatory parameter scale missing"):
            executor(ones(1))
        with pytest.raises(AssertionError, match="Too many arguments provided"):
            executor(ones(1), ones(1), ones(1))
        two = torch.tensor([2.0])
        assert executor(ones(1), scale=two).item() == 3
        assert executor(ones(1), offset=two, scale=two).item() == 4
        assert executor(scale=two, x=two).item() == 5

    def test_positional_only_parameters(self):
        def forward(x, y, /, z):
            return x + 10 * y + 100 * z

        one, two, three = (torch.tensor([float(i)]) for i in (1, 2, 3))
        executor = wrap(forward)
        assert executor(one, two, three).item() == 321
        assert executor(one, two, z=three).item() == 321

    def test_everything_variadic_reports_the_inner_error_itself(self):
        def inner(x, y):
            return x + y

        executor = wrap(lambda *args, **kwargs: inner(*args, **kwargs))
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
            executor(ones(1))
        assert executor(ones(1), ones(1)).item() == 2
        executor.destroy()
        assert executor(ones(1), y=ones(1)).item() == 2

    def test_scalars_strings_and_variadics_are_constant(self):
        def forward(x, *args, u, mode="add", **kwargs):
            y = x * u + sum(args)
            return y + kwargs.get("extra", 0) if mode == "add" else y

        executor = wrap(forward)
        assert executor(ones(1), 1, 2.5, u=5, extra=True).item() == 9.5
        for args, kwargs, phrase in [
            ((1, 2.5), {"u": 3, "extra": True}, "Value mismatch for u: expected 5 but got 3"),
            ((1, 2.5), {"u": 5}, r"Keys mismatch for .*Missing arguments: extra\."),
            ((1,), {"u": 5, "extra": True}, "Number of positional arguments mismatch: expected 3 arguments but got 2"),
            ((1, 2), {"u": 5, "extra": True}, r"Type mismatch for \*args\[1\]: expected <class 'float'>"),
            ((1, 2.5), {"u": 5, "extra": True, "mode": "sub"}, "Value mismatch for mode: expected add but got sub"),
            ((1, 2.5), {"u": 5, "extra": 1}, "Type mismatch for extra: expected <class 'bool'> but got <class 'int'>"),
        ]:
            with pytest.raises(poptorch.Error, match=phrase) as error:
                executor(ones(1), *args, **kwargs)
            assert "destroy()" in str(error.value)
        assert executor(ones(1), 1, 2.5, u=5, extra=True).item() == 9.5
        executor.destroy()
        assert executor(ones(1), u=3, mode="sub").item() == 3


class TestTypes:
    class Pair(NamedTuple):
        left: torch.Tensor
        right: torch.Tensor

    @dataclasses.dataclass
    class Batch:
        data: torch.Tensor
        scale: float = 2.0

    class Tagged(collections.OrderedDict):
        """A dictionary type of the user's own."""

    def test_a_tuple_arrives_as_a_tuple(self):
        for dtype in (torch.float32, torch.float16):

            def forward(pair):
                assert type(pair) is tuple
                return pair[0] + pair[1]

            executor = wrap(forward)
            for i in range(3):
                values = torch.full((2,), float(i), dtype=dtype)
                result = executor((values, values))
                assert result.dtype is dtype
                assert result.tolist() == [2 * i] * 2

    def test_nested_lists_and_tuples_of_mixed_types(self):
        def forward(first, second, unused):
            (a, [b, c]), d = first
            return a + b + c + d + second[0][0]

        executor = wrap(forward)
        single, double = torch.tensor([1.0]), torch.tensor([2.0], dtype=torch.float64)
        for _ in range(2):
            result = executor(((single, [double, single]), double), [(double,)], (single, (double, single)))
            assert result.item() == 8
            assert result.dtype is torch.float32

    def test_dictionaries_in_any_key_order(self, caplog):
        executor = wrap(lambda d: d["a"] + 10 * d["nested"]["b"] + 100 * d["c"][0])
        one, two, three = (torch.tensor([float(i)]) for i in (1, 2, 3))
        assert executor({"a": one, "nested": {"b": two}, "c": (three,)}).item() == 321
        assert "Dicts as inputs only have partial support" in caplog.text
        assert executor({"c": (three,), "nested": {"b": two}, "a": one}).item() == 321
        assert executor({"nested": {"b": one}, "a": two, "c": (three,)}).item() == 312
        with pytest.raises(
            poptorch.Error, match=r"Keys mismatch for d\. Missing arguments: a\. Unexpected arguments: z"
        ):
            executor({"c": (three,), "nested": {"b": two}, "z": one})
        with pytest.raises(poptorch.Error, match=re.escape("Shape mismatch for d[nested][b]")):
            executor({"a": one, "nested": {"b": ones(3)}, "c": (three,)})

    def test_mapping_types_are_kept(self):
        seen = []

        def forward(mapping):
            seen.append(type(mapping))
            return mapping["a"] - mapping["b"]

        one, two = torch.tensor([1.0]), torch.tensor([2.0])
        for kind in (dict, collections.OrderedDict, self.Tagged, lambda p: collections.defaultdict(int, p)):
            executor = wrap(forward)
            assert executor(kind([("a", one), ("b", two)])).item() == -1
            assert executor(kind([("b", two), ("a", one)])).item() == -1
        assert seen == [dict, collections.OrderedDict, self.Tagged, collections.defaultdict]

    def test_named_tuples_and_data_classes(self):
        executor = wrap(lambda p, b: p.left - p.right + b.data * b.scale)
        one, two = torch.tensor([1.0]), torch.tensor([2.0])
        assert executor(self.Pair(one, two), self.Batch(one, 3.0)).item() == 2
        assert executor(self.Pair(two, one), self.Batch(two, 3.0)).item() == 7
        with pytest.raises(poptorch.Error, match=re.escape("Value mismatch for b[scale]: expected 3.0 but got 4.0")):
            executor(self.Pair(one, two), self.Batch(one, 4.0))
        with pytest.raises(poptorch.Error, match=r"Type mismatch for p: expected .*Pair'> but got <class 'tuple'>"):
            executor((one, two), self.Batch(one, 3.0))

    def test_none(self):
        def forward(x, y=None, z=None):
            return x + (0 if y is None else y) + (0 if z is None else z)

        executor = wrap(forward)
        for args, kwargs in [
            ((), {}),
            ((None,), {}),
            ((None, None), {}),
            ((), {"z": None}),
            ((), {"z": None, "y": None}),
        ]:
            assert executor(ones(1), *args, **kwargs).item() == 1
        with pytest.raises(poptorch.Error, match="Type mismatch for y: expected <class 'NoneType'> but got"):
            executor(ones(1), ones(1))
        executor.destroy()
        assert executor(ones(1), None, ones(1)).item() == 2
        assert executor(ones(1), z=ones(1)).item() == 2

    def test_none_for_a_tensor_default(self):
        executor = wrap(lambda x, y=torch.tensor([2.0]): x if y is None else x + y)
        assert executor(ones(1), None).item() == 1

    def test_any_object_is_a_constant(self):
        class Settings:
            def __init__(self, factor):
                self.factor = factor

            def __eq__(self, other):
                return self.factor == other.factor

            __hash__ = None

            def __repr__(self):
                return f"Settings({self.factor})"

        executor = wrap(lambda x, s: x * s.factor)
        assert executor(ones(1), Settings(3)).item() == 3
        assert executor(ones(1), Settings(3)).item() == 3
        with pytest.raises(
            poptorch.Error, match=re.escape("Value mismatch for s: expected Settings(3) but got Settings(4)")
        ):
            executor(ones(1), Settings(4))

    def test_constants_that_compare_strangely(self):
        executor = wrap(lambda x, a, n: x + float(a.sum()) + (1 if n != n else 0))
        array = np.array([1.0, 2.0])
        assert executor(ones(1), array, float("nan")).item() == 5
        assert executor(ones(1), array.copy(), float("nan")).item() == 5
        with pytest.raises(poptorch.Error, match="Value mismatch for a"):
            executor(ones(1), np.array([1.0, 3.0]), float("nan"))
        with pytest.raises(poptorch.Error, match="Value mismatch for n"):
            executor(ones(1), array, 1.0)

    def test_parameters_and_results_as_arguments(self):
        executor = wrap(lambda x: x + 1)
        result = executor(nn.Parameter(ones(2)))
        assert executor(result).tolist() == [3, 3]


class TestFormOfTheCall:
    """``forward`` is called as the user called the executor."""

    @staticmethod
    def recording(function):
        calls = []

        @functools.wraps(function)
        def recorded(*args, **kwargs):
            calls.append((len(args), list(kwargs)))
            return function(*args, **kwargs)

        return Function(recorded), calls

    @pytest.mark.parametrize(
        ("args", "kwargs", "seen"),
        [
            ((ones(1),), {}, (1, [])),
            ((), {"x": ones(1)}, (0, ["x"])),
            ((ones(1),), {"z": ones(1)}, (1, ["z"])),
            ((), {"z": ones(1), "x": ones(1)}, (0, ["z", "x"])),
            ((ones(1), 2.0), {}, (2, [])),
            ((ones(1),), {"only": 3}, (1, ["only"])),
        ],
    )
    def test_nothing_is_added_or_moved(self, args, kwargs, seen):
        model, calls = self.recording(lambda x, y=1.0, z=None, *, only=2: x * y + only + (0 if z is None else z))
        poptorch.inferenceModel(model)(*args, **kwargs)
        assert calls == [seen]

    def test_defaults_with_tensors_are_inputs_and_go_by_name(self):
        model, calls = self.recording(lambda x, y=None, z=torch.ones(1): x + z)
        executor = poptorch.inferenceModel(model)
        assert executor(ones(1)).item() == 2
        assert calls == [(1, ["z"])]
        assert executor(ones(1), None, ones(1) * 4).item() == 5

    def test_defaults_with_tensors_that_have_no_name(self):
        def forward(x, y=2.0, z=torch.ones(1), /, w=3.0):
            return x * y + z + w

        model, calls = self.recording(forward)
        executor = poptorch.inferenceModel(model)
        assert executor(ones(1)).item() == 6
        assert calls == [(3, [])]

    def test_decorators_may_add_arguments_of_their_own(self):
        def add_cache(function):
            @functools.wraps(function)
            def wrapper(self, *args, **kwargs):
                return function(self, *args, use_cache=kwargs.pop("use_cache", True), **kwargs)

            return wrapper

        class Model(nn.Module):
            @add_cache
            def forward(self, x, mask=None, use_cache=None):
                return x + (1 if use_cache else 0) + (0 if mask is None else mask)

        executor = poptorch.inferenceModel(Model())
        assert executor(ones(1)).item() == 2
        assert executor(ones(1), None).item() == 2
        assert poptorch.inferenceModel(Model())(ones(1), mask=ones(1), use_cache=False).item() == 2

    def test_the_form_is_part_of_an_exported_file(self, tmp_path):
        model, calls = self.recording(lambda x, y=1.0, z=None: x * y if z is None else x + z)
        path = str(tmp_path / "model.poptorch")
        poptorch.inferenceModel(model).compileAndExport(path, z=ones(1), x=ones(1), export_model=False)
        executor = poptorch.inferenceModel(model)
        executor.loadExecutable(path)
        assert calls == [(0, ["z", "x"])] * 2
        assert executor(ones(1), z=ones(1)).item() == 2

    def test_a_model_of_transformers_wrapped_directly(self):
        transformers = pytest.importorskip("transformers", reason="needs the transformers package")
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        model = transformers.BertModel(config).eval()
        words, mask = torch.arange(8).reshape(2, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        executor = poptorch.inferenceModel(model)
        for given in ((words, mask), (words,)):
            named = {} if len(given) == 2 else {"attention_mask": mask}
            result = executor(*given, **named)
            with torch.no_grad():
                expected = model(words, attention_mask=mask)
            assert type(result) is type(expected)
            assert_close_sums(result.last_hidden_state, expected.last_hidden_state, terms=256)


class TestTracing:
    """What only holds after ``Jit.traceModel(True)``."""

    def test_dictionaries_are_refused_with_their_place(self):
        executor = wrap(lambda x, y: x, traced())
        for value, path in [({"a": 1}, "y"), ((1, ({"a": 1},)), "y[1][0]"), ([({"a": 1},)], "y[0][0]")]:
            with pytest.raises(TypeError) as error:
                executor(ones(1), value)
            assert str(error.value) == (
                "Dictionaries are not supported as input arguments, including when nested in tuples.\n"
                f"Received dict {path} = {{'a': 1}}"
            )

    def test_scalars_are_refused_with_their_types(self):
        executor = wrap(lambda x, y: x * y, traced())
        with pytest.raises(TypeError, match=re.escape("(Got types: [Tensor, float])")) as error:
            executor(ones(1), 2.0)
        assert "All forward function arguments used to compile and run the model must be Tensors" in str(error.value)
        assert "must be Tensors or (possibly nested) Lists and Tuples" in str(error.value)
        assert executor(ones(1), ones(1)).item() == 1

    def test_lists_are_announced(self, caplog):
        assert wrap(lambda x: x[0] + x[1], traced())([ones(1), ones(1)]).item() == 2
        assert "Lists as inputs only have partial support" in caplog.text

    def test_none_only_at_the_end_and_as_the_default(self):
        def forward(x, y=None, z=None):
            return x + (0 if y is None else y)

        executor = wrap(forward, traced())
        for args in [(), (None,), (None, None)]:
            assert executor(ones(1), *args).item() == 1
        with pytest.raises(poptorch.Error, match="'None' may not be passed"):
            executor(ones(1), None, ones(1))
        with pytest.raises(AssertionError, match="Torch doesn't support passing tensors"):
            executor(ones(1), z=ones(1))
        with pytest.raises(poptorch.Error, match="Number of arguments mismatch: expected 1 arguments but got 2"):
            executor(ones(1), ones(1))
        with pytest.raises(poptorch.Error, match="'None' may not be passed"):
            wrap(lambda x, y=torch.ones(1): x, traced())(ones(1), None)
        with pytest.raises(poptorch.Error, match="'None' may not be passed"):
            wrap(lambda x, y: x, traced())(ones(1), None)

    def test_defaults_that_the_caller_left_out_are_not_refused(self):
        executor = wrap(lambda x, y=None, z=torch.ones(1), n=2.0, d={}: x + z * n, traced())
        assert executor(ones(1)).item() == 3
        with pytest.raises(poptorch.Error, match="'None' may not be passed"):
            executor(ones(1), None)

    def test_other_checks_stay_the_same(self):
        executor = wrap(lambda x: x[0] * x[1], traced())
        assert executor((ones(1), ones(1))).item() == 1
        with pytest.raises(poptorch.Error, match="Length mismatch for x: expected 2 elements but got 3"):
            executor((ones(1), ones(1), ones(1)))


class TestNormalisation:
    @pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
    def test_integers_beyond_32_bits_are_mentioned_once_for_each_input(self, value, caplog):
        executor = wrap(lambda x, y: x + y)
        fitting = torch.tensor([2**31 - 1, -(2**31)])
        executor(fitting, torch.zeros_like(fitting))
        assert "32 bits" not in caplog.text
        for _ in range(2):
            executor(torch.zeros_like(fitting), torch.tensor([0, value]))
        assert caplog.text.count("has values that do not fit into 32 bits") == 1
        assert str(value) in caplog.text

    def test_non_contiguous_inputs_give_the_native_result_and_one_warning(self, caplog):
        x = torch.arange(24.0).view(2, 3, 4)
        values = [x.transpose(0, 2), x[:, ::2], x[..., 1], x[:, :1].expand(2, 3, 4), torch.arange(6.0)[::2]]
        assert not any(value.is_contiguous() for value in values)
        executor = wrap(lambda *args: [t * 2 + t.sum(0) for t in args])
        for _ in range(3):
            for result, value in zip(executor(*values), values, strict=True):
                assert_close_sums(result, value * 2 + value.sum(0), terms=8)
        assert caplog.text.count("is not contiguous") == 1

    def test_inputs_that_want_gradients_are_detached(self, caplog):
        x = torch.ones(2, requires_grad=True)
        executor = wrap(lambda t: t * 2)
        for _ in range(2):
            result = executor(x)
            assert not result.requires_grad
        phrase = (
            "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via inputs is "
            "not supported."
        )
        assert caplog.text.count(phrase) == 1
        assert x.requires_grad
        assert x.grad is None

    @pytest.mark.parametrize("place", ["input", "nested", "parameter", "buffer", "default"])
    def test_empty_tensors_are_refused(self, place):
        empty = torch.ones(0, 2, 5, 5)
        model = Function(lambda x, y=empty if place == "default" else None: x)
        if place == "parameter":
            model.register_parameter("p", nn.Parameter(empty))
        if place == "buffer":
            model.register_buffer("p", empty)
        argument = {"input": empty, "nested": (ones(1), [empty])}.get(place, ones(1))
        with pytest.raises(
            poptorch.Error, match=re.escape("Zero-sized tensors are unsupported (Got shape [0, 2, 5, 5])")
        ):
            poptorch.inferenceModel(model)(argument)

    DTYPES = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
    NARROW = {torch.float64: torch.float32, torch.int64: torch.int32}  # noqa: RUF012

    @pytest.mark.parametrize("source", DTYPES)
    def test_every_input_and_output_type(self, source):
        x = torch.tensor([1, 2, 3]).to(source)
        executor = wrap(lambda t: [(t + 1).to(target) for target in self.DTYPES])
        for _ in range(2):
            for result, target in zip(executor(x), self.DTYPES, strict=True):
                assert result.dtype is self.NARROW.get(target, target)
                assert result.tolist() == [2, 3, 4]
        assert x.dtype is source

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.bool, torch.int32, torch.float16])
    def test_small_types_pass_through_and_keep_their_type(self, dtype):
        x = torch.tensor([0, 1, 1]).to(dtype)
        same, cast = wrap(lambda t: (t, t.float()))(x)
        assert same.dtype is dtype
        assert torch.equal(same, x)
        assert cast.tolist() == [0, 1, 1]

    def test_comparisons_and_integer_reductions(self):
        x, y = torch.tensor([1.0, 2.0]), torch.tensor([2, 2])
        less, total, product, count = wrap(lambda a, b: (a < b, (a < b).sum(), (a < b).prod(), b.sum()))(x, y)
        assert less.dtype is torch.bool
        assert less.tolist() == [True, False]
        assert (total.dtype, product.dtype, count.dtype) == (torch.int32,) * 3
        assert (total.item(), product.item(), count.item()) == (1, 0, 4)

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
    def test_unsupported_types(self, dtype):
        executor = wrap(lambda t: t.real + 1)
        with pytest.raises(poptorch.Error, match=f"Unsupported input type {dtype}"):
            executor(torch.ones(2, dtype=dtype))
        with pytest.raises(poptorch.Error, match=r"Returning a torch.complex64 is not supported"):
            wrap(lambda t: torch.complex(t, t))(ones(2))
        assert wrap(lambda t: t + 1)(ones(1)).item() == 2

    def test_sparse_inputs_are_refused(self):
        with pytest.raises(poptorch.Error, match="Unsupported input type"):
            wrap(lambda t: t)(torch.eye(2).to_sparse())

    def test_scalars_of_zero_dimensions(self):
        executor = wrap(lambda t, u: (t + u, t))
        total, same = executor(torch.tensor(2.0), torch.tensor(3))
        assert (total.item(), total.shape, same.shape) == (5.0, torch.Size([]), torch.Size([]))

    def test_narrowing_of_a_result_is_announced_once(self, caplog):
        executor = wrap(lambda t: t + 1)
        for _ in range(2):
            executor(torch.tensor([1]))
        assert caplog.text.count("is not supported natively on IPU") == 1

    def test_model_sees_one_micro_batch(self):
        seen = []

        def forward(x, y):
            seen.append((x.shape, y.shape))
            return x.sum() + y.sum()

        wrap(forward, poptorch.Options().deviceIterations(3))(ones(6, 2), ones(3))
        assert seen == [(torch.Size([2, 2]), torch.Size([1]))]


class TestConsistency:
    CASES = [  # noqa: RUF012
        (
            lambda x: (x, "s"),
            (ones(1),),
            (ones(2),),
            r"Shape mismatch for x: expected torch.Size\(\[1\]\) but got torch.Size\(\[2\]\)",
        ),
        (
            lambda x: x,
            (ones(1),),
            (torch.ones(1, dtype=torch.int64),),
            "Data type mismatch for x: expected torch.float32 but got torch.int64",
        ),
        (
            lambda x: x,
            (torch.ones(1, dtype=torch.int64),),
            (torch.ones(1, dtype=torch.int32),),
            "expected torch.int64 but got torch.int32",
        ),
        (
            lambda x: x,
            (torch.ones(1, dtype=torch.float64),),
            (ones(1),),
            "expected torch.float64 but got torch.float32",
        ),
        (
            lambda t: t[0],
            ((ones(1), ones(1)),),
            ((ones(1), ones(1), ones(1)),),
            "Length mismatch for t: expected 2 elements but got 3",
        ),
        (lambda t: t[0], ([ones(1), ones(1)],), ([ones(1)],), "Length mismatch for t: expected 2 elements but got 1"),
        (
            lambda t: t[0],
            ([ones(1), ones(1)],),
            ((ones(1), ones(1)),),
            "Type mismatch for t: expected <class 'list'> but got <class 'tuple'>",
        ),
        (lambda t: t[0][0], (((ones(1),), 2),), (((ones(2),), 2),), r"Shape mismatch for t\[0\]\[0\]"),
        (
            lambda z: z + 0,
            (ones(1),),
            (3,),
            "Type mismatch for z: expected <class 'torch.Tensor'> but got <class 'int'>",
        ),
        (lambda x, z: x + z, (ones(1), 3), (ones(1), ones(1)), "Type mismatch for z: expected <class 'int'> but got"),
        (lambda x, u: x + u, (ones(1), 5), (ones(1), 3), "Value mismatch for u: expected 5 but got 3"),
        (
            lambda x, u: x + u[1],
            (ones(1), [4, 5]),
            (ones(1), [4, 3]),
            r"Value mismatch for u\[1\]: expected 5 but got 3",
        ),
        (
            lambda x, u: x + u["k"],
            (ones(1), {"k": 5}),
            (ones(1), {"k": 3}),
            r"Value mismatch for u\[k\]: expected 5 but got 3",
        ),
    ]

    @pytest.mark.parametrize(("function", "first", "second", "phrase"), CASES)
    def test_changes_are_refused_until_destroyed(self, function, first, second, phrase):
        executor = wrap(function)
        before = executor(*first)
        with pytest.raises(poptorch.Error, match=phrase) as error:
            executor(*second)
        assert "destroy()" in str(error.value)
        assert str(executor(*first)) == str(before)
        executor.destroy()
        executor(*second)

    def test_lists_of_tensors_compare_element_by_element(self):
        executor = wrap(lambda t: t[0] + t[1])
        assert executor([ones(2), ones(2)]).tolist() == [2, 2]
        assert executor([torch.tensor([1.0, 5.0]), ones(2)]).tolist() == [2, 6]

    def test_training_executor_accepts_other_shapes_after_destroy(self, linear, batch):
        x, target = batch
        executor = poptorch.trainingModel(linear)
        executor(x, target)
        with pytest.raises(poptorch.Error, match="Shape mismatch for x"):
            executor(x[:2], target[:2])
        executor.destroy()
        executor(x[:2], target[:2])


class TestInPlace:
    def test_a_model_that_returns_nothing_changes_its_input(self):
        def forward(x):
            x += 1

        executor = wrap(forward)
        x, other = ones(1), torch.tensor([10.0])
        assert executor(x) is None
        assert x.item() == 2
        executor(x)
        assert x.item() == 3
        executor(other)
        assert (x.item(), other.item()) == (3, 11)

    def test_chained_changes_and_nested_inputs(self):
        def forward(x, rest):
            x.add_(1).mul_(2)
            rest[0].sub_(1)
            rest[1][0].copy_(x)
            return x + 0

        executor = wrap(forward)
        x, a, b = ones(2), ones(2), ones(2)
        for expected in (4.0, 10.0):
            result = executor(x, (a, [b]))
            assert x.tolist() == [expected] * 2 == result.tolist() == b.tolist()
        assert a.tolist() == [-1, -1]

    def test_intermediates_leave_inputs_alone(self):
        def forward(x):
            y = x + 0
            y += 5
            return y

        x = ones(2)
        assert wrap(forward)(x).tolist() == [6, 6]
        assert x.tolist() == [1, 1]

    def test_views_of_inputs_change_inputs(self):
        def forward(x):
            x[0] = 7
            x.view(-1)[-1] += 1
            return x.sum()

        x = ones(2, 2)
        assert wrap(forward)(x).item() == 7 + 7 + 1 + 2
        assert x.tolist() == [[7, 7], [1, 2]]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float16, torch.int32])
    def test_changes_come_back_in_the_callers_type(self, dtype):
        def forward(x):
            x += 1

        x = torch.ones(2, dtype=dtype)
        wrap(forward)(x)
        assert x.dtype is dtype
        assert x.tolist() == [2, 2]

    def test_copies_made_for_the_device_are_not_written_back(self):
        def forward(x):
            x += 1
            return x * 1

        base = ones(2, 2)
        executor = wrap(forward)
        assert executor(base[:, 0]).tolist() == [2, 2]
        assert base.tolist() == [[1, 1], [1, 1]]

    def test_input_that_wants_a_gradient(self):
        def forward(x):
            x += 1
            return x * 1

        x = torch.ones(2, requires_grad=True)
        assert wrap(forward)(x).tolist() == [2, 2]
        assert x.tolist() == [2, 2]

    def test_compile_changes_nothing(self):
        def forward(x):
            x += 1

        x = ones(2)
        executor = wrap(forward)
        executor.compile(x)
        assert x.tolist() == [1, 1]
        executor(x)
        assert x.tolist() == [2, 2]

    def test_training(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(1))

            def forward(self, x):
                x += 1
                return poptorch.identity_loss((self.w * x).sum(), reduction="none")

        x = ones(1)
        executor = poptorch.trainingModel(Model())
        for expected in (2, 3):
            executor(x)
            assert x.item() == expected


class TestCustomParsers:
    class Graph:
        """A container of the user's own, with a value that is no tensor."""

        def __init__(self, nodes, edges, name="g"):
            self.nodes, self.edges, self.name = nodes, edges, name

    class SubGraph(Graph):
        pass

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.nodes
            yield struct.edges

        def reconstruct(self, original_structure, tensor_iterator):
            return type(original_structure)(next(tensor_iterator), next(tensor_iterator), original_structure.name)

    @pytest.fixture
    def parser(self):
        poptorch.registerCustomArgParser(self.Graph, self.Parser())
        yield
        poptorch.registerCustomArgParser(self.Graph, None)

    @pytest.mark.usefixtures("parser")
    @pytest.mark.parametrize("kind", [Graph, SubGraph])
    def test_in_and_out(self, kind):
        def forward(graph):
            assert type(graph) is kind
            return kind(graph.nodes * 2, graph.edges + 1, graph.name + "!"), graph.nodes.shape[0]

        executor = wrap(forward, poptorch.Options().deviceIterations(2))
        for factor in (1.0, 2.0):
            result, rows = executor(kind(torch.ones(4, 3) * factor, torch.ones(2, dtype=torch.int32)))
            assert type(result) is kind
            assert result.name == "g!"
            assert rows == 2
            assert torch.equal(result.nodes, torch.full((4, 3), 2 * factor))
            assert result.edges.tolist() == [2, 2]
        with pytest.raises(poptorch.Error, match=re.escape("Shape mismatch for graph[0]")):
            executor(kind(torch.ones(2, 3), torch.ones(2, dtype=torch.int32)))

    def test_objects_without_a_parser_are_taken_apart_by_attributes(self):
        executor = wrap(lambda x, g: {"a": [self.Graph(x + g.nodes, x)]})
        for value in (1.0, 2.0):
            result = executor(ones(2), self.Graph(torch.full((2,), value), torch.ones(1)))
            assert result["a"][0].nodes.tolist() == [1 + value, 1 + value]
        with pytest.raises(poptorch.Error, match="registerCustomArgParser"):
            wrap(lambda x: {x + 1})(ones(2))
        assert wrap(lambda x: x + 1)(ones(1)).item() == 2


class TestOneTensorForSeveralArguments:
    """What is passed when the model is compiled says nothing about later calls."""

    def test_results(self):
        model = wrap(lambda a, b: (a - b, a * 2))
        x = torch.ones(2)
        assert model(x, x)[0].tolist() == [0.0, 0.0]
        difference, double = model(x, torch.full((2,), 5.0))
        assert difference.tolist() == [-4.0, -4.0]
        assert double.tolist() == [2.0, 2.0]

    def test_changes_in_place(self):
        def forward(a, b):
            a += 1.0
            return a + b

        model = wrap(forward)
        model.compile(torch.zeros(2), torch.zeros(2))
        both = torch.zeros(4)
        model = wrap(forward)
        model.compile(both[:3], both[1:])
        a, b = torch.zeros(3), torch.full((3,), 2.0)
        assert model(a, b).tolist() == [3.0, 3.0, 3.0]
        assert a.tolist() == [1.0, 1.0, 1.0]
        assert b.tolist() == [2.0, 2.0, 2.0]

    def test_training(self):
        layer = nn.Linear(1, 1, bias=False)
        nn.init.ones_(layer.weight)

        class WithLoss(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x, target):
                return nn.functional.mse_loss(self.layer(x), target)

        model = poptorch.trainingModel(WithLoss(), optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
        x = torch.ones(1, 1)
        model.compile(x, x)
        assert model(x, 3 * x).item() == 4.0
        assert layer.weight.item() == pytest.approx(1.4)


class TestOneTensorForTwoArguments:
    class Adds(nn.Module):
        def forward(self, a, b):
            a += 1
            return b * 2

    def test_a_change_through_one_shows_in_the_other(self):
        x = torch.zeros(3)
        executor = poptorch.inferenceModel(self.Adds())
        assert executor(x, x).tolist() == [2, 2, 2]
        assert x.tolist() == [1, 1, 1]
        assert executor(x, x).tolist() == [4, 4, 4]

    def test_the_program_belongs_to_one_way_of_sharing(self):
        x, y = torch.zeros(3), torch.zeros(3)
        executor = poptorch.inferenceModel(self.Adds())
        assert executor(x, y).tolist() == [0, 0, 0]
        with pytest.raises(poptorch.Error, match=r"changes a in place.*compiled with different tensors for a and b"):
            executor(x, x)
        executor = poptorch.inferenceModel(self.Adds())
        executor(x, x)
        with pytest.raises(poptorch.Error, match="compiled with one tensor for a and b"):
            executor(x, y)

    def test_what_is_only_read_may_be_shared_or_not(self):
        class Sum(nn.Module):
            def forward(self, a, b):
                return a + b

        x, y = torch.ones(3), torch.zeros(3)
        executor = poptorch.inferenceModel(Sum())
        assert [executor(*given).sum().item() for given in ((x, x), (x, y), (y, y))] == [6, 3, 0]
