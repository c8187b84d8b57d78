"""``IPUContext``: plain functions as programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.experimental import IPUContext

X = torch.arange(6.0).reshape(2, 3)


# -- how functions are given -------------------------------------------------------------------------------------------


def test_a_function_is_compiled_at_the_first_call_and_runs_at_the_others() -> None:
    runs = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        return x * 2

    on_ipu = IPUContext(function)
    assert torch.equal(on_ipu(X), X * 2)
    assert torch.equal(on_ipu(X + 1), X * 2 + 2)
    assert len(runs) == 1
    assert len(list(on_ipu.program.operations())) == 1


@pytest.mark.parametrize("compiler", list(poptorch.Compiler))
def test_any_callable_will_do(compiler: poptorch.Compiler) -> None:
    class Scaled:
        factor = 3

        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    layer = nn.Linear(3, 2)
    assert torch.equal(IPUContext(torch.add, compiler=compiler)(X, X), X + X)
    assert torch.equal(IPUContext(lambda x: -x, compiler=compiler)(X), -X)
    assert torch.equal(IPUContext(Scaled().scale, compiler=compiler)(X), X * 3)
    assert_close_sums(IPUContext(layer, model=layer, compiler=compiler)(X), layer(X).detach(), terms=3)


def test_decorators_bare_and_with_settings() -> None:
    layer = nn.Linear(3, 2)

    @IPUContext
    def bare(x: torch.Tensor) -> torch.Tensor:
        """Says what it does."""
        return x + 1

    @IPUContext(model=layer, options=poptorch.Options(), compiler=poptorch.Compiler.PopART)
    def configured(x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    assert (bare.__name__, bare.__doc__) == ("bare", "Says what it does.")
    assert torch.equal(bare.__wrapped__(X), bare(X))
    assert_close_sums(configured(X), layer(X).detach(), terms=3)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(poptorch.Error, match="compiler must be"):
        IPUContext(torch.add, compiler="MLIR")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model must inherit from torch\.nn\.Module"):
        IPUContext(torch.add, model=torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="needs a function"):
        IPUContext(3)  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="'options' is of type"):
        IPUContext(torch.add, options=3)  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="dict_optimizer must be empty"):
        IPUContext(torch.add, dict_optimizer={"lr": 1})


def test_options_of_the_caller_stay_open_and_undecided() -> None:
    options = poptorch.Options().deviceIterations(2)
    result = IPUContext(lambda x: x.sum(0, keepdim=True), options=options)(torch.ones(4, 3))
    assert result.shape == (2, 3)  # all results, as of wrapped models for inference
    assert options.defaultOutputMode()
    options.deviceIterations(3)


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_tensors_in_any_structure_are_inputs() -> None:
    def function(pair: Any, *, named: Any) -> torch.Tensor:
        return pair[0] + pair[1]["b"] * named[0]

    on_ipu = IPUContext(function)
    for value in (1.0, 2.0):
        given = torch.full((2,), value)
        expected = function((given, {"b": given}), named=[given])
        assert torch.equal(on_ipu((given, {"b": given}), named=[given]), expected)


def test_other_values_are_passed_on_and_frozen(capfd: pytest.CaptureFixture[str]) -> None:
    filled: list[Any] = []

    def function(x: torch.Tensor, dim: int, layer: nn.Module, notes: list[Any]) -> torch.Tensor:
        notes.append(dim)
        return layer(x).sum(dim)

    on_ipu = IPUContext(function)
    layer = nn.Linear(3, 2)
    expected = layer(X).sum(0).detach()
    assert_close_sums(on_ipu(X, 0, layer, filled), expected, terms=6)
    assert filled == [0]
    assert "frozen" not in capfd.readouterr().err
    assert_close_sums(on_ipu(X, 1, layer, filled), expected, terms=6)
    assert filled == [0]
    assert "captured with 0, which is frozen" in capfd.readouterr().err


def test_containers_are_filled_once_even_if_capture_needs_real_values() -> None:
    def function(x: torch.Tensor, notes: list[Any], table: dict[str, int]) -> torch.Tensor:
        notes.append("seen")
        table["size"] = len(table)
        return x + 1 if x.sum() > 0 else x - 1

    notes: list[Any] = []
    table: dict[str, int] = {}
    with pytest.warns(UserWarning, match="frozen into the program"):
        assert torch.equal(IPUContext(function)(X, notes, table), X + 1)
    assert (notes, table) == (["seen"], {"size": 0})


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="You cannot pass sparse tensors as inputs to IPUScope"):
        IPUContext(torch.neg)(torch.eye(2).to_sparse())


def test_inputs_of_another_shape_are_refused_later() -> None:
    on_ipu = IPUContext(torch.neg)
    on_ipu(X)
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        on_ipu(X[:1])


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_keep_their_structure() -> None:
    on_ipu = IPUContext(lambda x: (x, [x + 1, {"a": x + 2}], None))
    first, (second, third), nothing = on_ipu(X)
    assert torch.equal(first, X)
    assert torch.equal(second, X + 1)
    assert torch.equal(third["a"], X + 2)
    assert nothing is None


def test_a_function_may_return_nothing() -> None:
    def writes(x: torch.Tensor) -> None:
        x += 1

    assert IPUContext(writes)(X) is None
    assert IPUContext(lambda x: None)(X) is None


def test_only_tensors_may_be_returned() -> None:
    with pytest.raises(poptorch.Error, match="Only tensors may be returned"):
        IPUContext(lambda x: (x, 3))(X)


def test_wide_types_are_narrowed() -> None:
    integers, floats = IPUContext(lambda x: (x.long(), x.double()))(X)
    assert (integers.dtype, floats.dtype) == (torch.int32, torch.float32)
    assert IPUContext(torch.neg)(X.double()).dtype is torch.float32


def test_the_function_may_write_to_its_inputs_and_the_caller_does_not_see_it() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x += 1
        y.zero_()
        return x, y

    given = X.clone(), X.clone()
    on_ipu = IPUContext(function)
    for _ in range(2):
        added, zeros = on_ipu(*given)
        assert torch.equal(added, X + 1)
        assert not zeros.any()
        assert torch.equal(given[0], X)
        assert torch.equal(given[1], X)


def test_results_share_no_memory() -> None:
    given = X.clone()
    whole, row, again = IPUContext(lambda x: (x, x[0], x))(given)
    whole.zero_()
    assert torch.equal(row, X[0])
    assert torch.equal(again, X)
    assert torch.equal(given, X)


def test_a_result_that_was_never_on_the_device_is_mentioned() -> None:
    constant = torch.ones(2)
    with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        assert torch.equal(IPUContext(lambda x: (x, constant))(X)[1], constant)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "phrase"),
    [
        (lambda x: x.reshape(3, 3), "is invalid for input of size 8"),
        (lambda x: x.view(-1, -1), "only one dimension can be inferred"),
        (lambda x: x @ torch.ones(3, 3), "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_errors_of_torch_are_errors_of_the_compilation(function: Any, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        IPUContext(function)(torch.ones(2, 4))


def test_errors_of_the_function_come_through() -> None:
    def fails(x: torch.Tensor) -> None:
        raise RuntimeError("of its own")

    on_ipu = IPUContext(fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="of its own"):
            on_ipu(X)
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        on_ipu.program  # noqa: B018
    assert torch.equal(IPUContext(torch.neg)(X), -X)


def test_arbitrary_strides_are_refused_if_strict() -> None:
    strict = poptorch.Options().strictCompatibility(True)

    def transposed(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3, 2), (1, 3))

    assert torch.equal(IPUContext(transposed)(X), X.t())
    with pytest.raises(poptorch.Error, match="arbitrary manipulations of the shape and stride of a tensor"):
        IPUContext(transposed, options=strict)(X)
    assert torch.equal(IPUContext(lambda x: torch.as_strided(x, (1, 3), (3, 1)), options=strict)(X), X[:1])


# -- life cycle --------------------------------------------------------------------------------------------------------


def test_compile_ahead() -> None:
    on_ipu = IPUContext(torch.neg)
    on_ipu.compile(X)
    before = on_ipu.program
    assert torch.equal(on_ipu(X), -X)
    assert on_ipu.program is before
    with pytest.raises(poptorch.Error, match="compiled already"):
        on_ipu.compile(X)


def test_executables_come_from_files(tmp_path: Any) -> None:
    layer = nn.Linear(3, 2)
    path = str(tmp_path / "layer.poptorch")
    poptorch.inferenceModel(layer).compileAndExport(path, X)
    on_ipu = IPUContext(layer, model=layer, compiler=poptorch.Compiler.PopART)
    on_ipu.loadExecutable(path, X)
    assert_close_sums(on_ipu(X), layer(X).detach(), terms=3)
    with pytest.raises(poptorch.Error, match="another program"):
        IPUContext(torch.neg, compiler=poptorch.Compiler.PopART).loadExecutable(path, X)
    with pytest.raises(poptorch.Error, match="can't deserialize MLIR executables"):
        IPUContext(layer, model=layer).loadExecutable(path, X)


def test_code_knows_that_it_is_captured() -> None:
    seen = []
    IPUContext(lambda x: seen.append(poptorch.isRunningOnIpu()) or x)(X)
    assert seen == [True]
    assert not poptorch.isRunningOnIpu()


def test_captured_functions_can_be_part_of_others() -> None:
    inner = IPUContext(torch.neg)
    assert torch.equal(IPUContext(lambda x: inner(x) + 1)(X), 1 - X)


def test_blocks_put_parts_of_a_function_on_ipus() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            x = x + 1
        with poptorch.Block("second", ipu_id=1):
            return x * 2

    on_ipu = IPUContext(function, options=poptorch.Options().deviceIterations(2))
    assert torch.equal(on_ipu(X), (X + 1) * 2)
    assert {place.ipu for place in on_ipu.program.placements()} == {0, 1}
