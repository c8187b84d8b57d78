"""Host programs as data: what the verifier refuses, and how they print."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executable.host_program import (
    Apply,
    Argument,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    Kernel,
    KernelCall,
    Operation,
    Prepared,
    Value,
)
from poptorch.executable.host_verify import BrokenHostProgram, verify
from poptorch.host.store import cache

PRINTED = Path(__file__).parent / "printed"

INPUTS = (Argument("parameters", (0,)), Argument("inputs", (1,)), Argument("random"), Argument("hand"))


def program(*steps: Any, results: tuple[int | None, ...] = (), arguments: Any = INPUTS) -> HostProgram:
    names = tuple(f"v{i}" for i in range(9))
    return HostProgram("micro_batch", arguments, steps, results, names, {"k": Kernel("k")}, {"f": print})


def call(*inputs: int, to: tuple[int, ...] = (), **fields: Any) -> KernelCall:
    return KernelCall("k", inputs, to, **fields)


SOUND = program(
    Constant(2, torch.ones(2)),
    call(0, 1, 2, to=(3, 4, 5), frees=(1,)),
    call(3, to=(6,), reuses=(3,), frees=(3,)),
    Factors(7, 4, 6, (True, False), frees=(4, 6)),
    HandOver(0, (7,)),
    Operation(8, Apply("f", (Value(5), [Value(0)]))),
    results=(8, 5),
)


def test_a_sound_program_is_accepted() -> None:
    verify(SOUND)


BROKEN = {
    "%3 is read before it is made": program(call(3)),
    "%1 is made twice": program(call(0, to=(1,))),
    "%1 is read after it was freed": program(call(1, frees=(1,)), call(1)),
    "%1 is freed again": program(call(1, frees=(1,)), call(0, frees=(1,))),
    "%3 is freed before it is made": program(call(0, frees=(3,))),
    "the constant %2 is freed": program(Constant(2, None), call(2, frees=(2,))),
    "the result %2 is lost: it was freed": program(call(0, to=(2,), frees=(2,)), results=(2,)),
    "the result %2 is never made": program(results=(2,)),
    "the result %2 is lost: it was handed over": program(call(0, to=(2,)), HandOver(0, (2,)), results=(2,)),
    "%2 is read after it was handed over": program(call(0, to=(2,)), HandOver(0, (2,)), HandOver(1, (2,))),
    "bucket 0 comes before bucket 1": program(call(0, to=(2,)), HandOver(1, (2,))),
    "bucket 0 is empty": program(HandOver(0, ())),
    "there is no kernel 'other'": program(KernelCall("other", (), ())),
    "there is no function 'g'": program(Operation(None, Apply("f", (Apply("g", ()),)))),
    "%1 is reused although its memory belongs to others": program(call(1, reuses=(1,), frees=(1,))),
    "%2 is reused although it is needed later": program(call(to=(2,)), call(2, reuses=(2,)), results=(2,)),
    "%2 is reused and given twice": program(call(to=(2,)), call(2, 2, reuses=(2,), frees=(2,))),
    "%2 is reused and no operand": program(call(to=(2,)), call(0, reuses=(2,), frees=(2,))),
    "%1, which differs from call to call, is prepared from": program(Prepared("k", (1,), (2,))),
    "%12 has no name": program(call(to=(12,))),
    "arguments of one value each come before another one": program(
        arguments=(Argument("operands", (0, 1), apart=True), Argument("random"))
    ),
    "two values have one name": dataclasses.replace(program(), names=("a", "a")),
    "a name of a value is no name of Python": dataclasses.replace(program(), names=("a", "b c")),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_each_kind_of_fault_is_found(fault: str) -> None:
    with pytest.raises(BrokenHostProgram, match=re.escape(fault)):
        verify(BROKEN[fault])


def test_memory_that_is_given_away_may_be_reused() -> None:
    given = (Argument("inputs", (0,), given_away=True),)
    verify(program(call(0, reuses=(0,), frees=(0,)), arguments=given))


def test_an_operation_is_checked_like_a_kernel() -> None:
    over = Operation(2, Apply("f", (Value(1),)), reuses=(1,), frees=(1,))
    with pytest.raises(BrokenHostProgram, match="belongs to others"):
        verify(program(over))


def test_printing() -> None:
    assert (
        str(SOUND)
        == """\
micro_batch(parameters, inputs, random, hand):
  %0 = parameters
  %1 = inputs
  %2 = constant float32[2]
  %3, %4, %5 = kernel k(%0..%2)  free %1
  %6 = kernel k(%3), may reuse %3  free %3
  %7 = factors %4.t() @ %6  free %4, %6
  hand over bucket 0: %7
  %8 = f(%5, [%0])
  return %8, %5
  kernel k: """
    )


def test_programs_are_equal_by_their_steps() -> None:
    assert program(Constant(2, torch.ones(2))) == program(Constant(2, torch.ones(2)))
    assert program(Constant(2, torch.ones(2))) != program(Constant(2, torch.zeros(2)))
    assert program(call(0)) != program(call(1))


# -- what executors print --------------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.second(torch.relu(self.first(x))), target)


def trained(monkeypatch: pytest.MonkeyPatch, level: str) -> Any:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    torch.manual_seed(0)
    model = TwoLayers()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    executor.compile(torch.ones(2, 4), torch.ones(2, 3))
    return executor


def printed(executor: Any) -> str:
    """What runs, with kernels by number: their names depend on the processor."""
    text = str(executor.executable.code)
    names = dict.fromkeys(re.findall(r"kernel (c[a-z2-7]{20,})", text))
    for number, name in enumerate(names):
        text = text.replace(name, f"k{number}")
    return re.sub(r"for \d+ threads", "for n threads", text)


def test_an_interpreted_model_of_two_layers_with_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(trained(monkeypatch, "interpret")) + "\n" == (PRINTED / "interpreted.txt").read_text()


@pytest.mark.timeout(600)  # a C++ compiler at work
def test_a_native_model_of_two_layers_with_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(trained(monkeypatch, "native")) + "\n" == (PRINTED / "native.txt").read_text()


def test_a_pipeline_of_two_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    model = TwoLayers()
    poptorch.BeginBlock(model.second, ipu_id=1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options, optimizer)
    executor.compile(torch.ones(8, 4), torch.ones(8, 3))
    assert printed(executor) + "\n" == (PRINTED / "pipeline.txt").read_text()


# -- dumps -------------------------------------------------------------------------------------------------------------


def test_each_step_and_pass_is_dumped(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("POPTORCH_DUMP", str(tmp_path))
    trained(monkeypatch, "interpret")
    files = sorted((tmp_path / "training-1" / "host").iterdir())
    assert [file.name for file in files] == [
        "00-level.txt", "01-group-micro-batches.txt", "02-divide.txt", "03-matrix-products.txt", "04-stage-code.txt",
        "05-update-code.txt", "06-update-in-backward.txt",
    ]  # fmt: skip
    assert "micro_batch(" in files[4].read_text()
    assert "update(" in files[5].read_text()
    assert "step(" in files[6].read_text()


@pytest.mark.timeout(600)  # a C++ compiler at work
def test_each_pass_of_native_stages_is_dumped(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setenv("POPTORCH_DUMP", str(tmp_path))
    monkeypatch.setattr(cache, "local_folder", lambda: None)  # what is found is not made
    model = TwoLayers()
    poptorch.BeginBlock(model.second, ipu_id=1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(torch.ones(8, 4), torch.ones(8, 3))
    names = [file.name[3:-4] for file in sorted((tmp_path / "training-1" / "host").iterdir())]
    for stage in ("forward-of-part-0", "backward-of-part-1"):
        passes = [name.removeprefix(f"{stage}-") for name in names if name.startswith(stage)]
        expected = ["whole", "random-keys", "own-inputs", "factors", "kernels"]
        assert passes == [name for name in expected if name != "factors" or stage.startswith("backward")]
    assert names[-1] == "update"
