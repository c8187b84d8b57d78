"""Errors of running programs name the operation, the module, the line of ``forward`` and the values that are wrong."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.errors import IndexOutOfRange


class Classifier(nn.Module):
    """Looks up, multiplies, classifies; in two stages if asked to."""

    def __init__(self, pipelined: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pipelined = pipelined
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pipelined:
            poptorch.Block.start("a", ipu_id=0)
        h = self.words(ids)  # the line of the lookup
        if self.pipelined:
            poptorch.Block.start("b", ipu_id=1)
        y = self.head(h)
        return y, nn.functional.cross_entropy(y, label)  # the line of the loss


def line_of(cls: type, text: str) -> str:
    """``file:line`` of the line of a class with some text."""
    lines, first = inspect.getsourcelines(cls)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(cls)}:{first + number}"


def executor(
    training: bool, *, pipelined: bool = False, accumulation: int = 1, iterations: int = 1, replicas: int = 1
) -> Any:
    model = Classifier(pipelined)
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    if not pipelined:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    if not training:
        return poptorch.inferenceModel(model.eval(), options)
    options.Training.gradientAccumulation(accumulation)
    return poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))


def data(micro_batches: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(micro_batches * rows)
    return numbers % 5, numbers % 3


SHAPES: dict[str, dict[str, Any]] = {
    "training": {"training": True},
    "accumulated": {"training": True, "accumulation": 4},
    "training pipeline": {"training": True, "pipelined": True, "accumulation": 4},
    "replicas": {"training": True, "replicas": 2, "accumulation": 2},
    "inference": {"training": False},
    "iterations": {"training": False, "iterations": 4},
    "inference pipeline": {"training": False, "pipelined": True, "iterations": 4},
}


NATIVE = ["training", "accumulated", "training pipeline", "inference pipeline"]
"""Compiling takes seconds; these are all the ways in which native code is run."""


@pytest.mark.parametrize(
    ("shape", "level"), [*((shape, "interpret") for shape in SHAPES), *((shape, "native") for shape in NATIVE)]
)
def test_a_wrong_label_and_a_wrong_index(shape: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    settings = SHAPES[shape]
    model = executor(**settings)
    count = settings.get("accumulation", 1) * settings.get("iterations", 1) * settings.get("replicas", 1)
    ids, label = data(count)
    good = model(ids, label)

    wrong = label.clone()
    wrong[-1] = 17
    with pytest.raises(IndexOutOfRange) as caught:
        model(ids, wrong)
    text = str(caught.value)
    assert line_of(Classifier, "the line of the loss") in text
    assert "from the input 'label', must be from 0 to 2" in text
    assert "17 at [1]" in text
    position = count // settings.get("replicas", 1) - 1
    assert f"Micro-batch {position} of the call" in text
    assert ("replica 1" in text) is ("replicas" in settings)
    assert ("forward of part 1" in text) is ("pipelined" in settings)

    wrong = ids.clone()
    wrong[0] = 9
    with pytest.raises(IndexError) as caught:
        model(wrong, label)
    text = str(caught.value)
    assert "'embedding' in module 'words'" in text
    assert line_of(Classifier, "the line of the lookup") in text
    assert "from the input 'ids', must be from 0 to 4, but there is 9 at [0]" in text
    assert "Micro-batch 0 of the call" in text
    assert model(ids, label)[0].shape == good[0].shape  # the model can be called again


def test_a_group_of_micro_batches_is_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_GROUP", "4")
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    model = executor(training=True, accumulation=4)
    ids, label = data(4)
    label[5] = -3
    with pytest.raises(RuntimeError, match=r"there is -3 at \[1\]\. Micro-batch 2 of the call\.") as caught:
        model(ids, label)
    assert isinstance(caught.value, IndexError)
    assert model.executable.code.loop.group_size == 4


def test_a_long_list_of_wrong_values_is_cut() -> None:
    model = executor(training=False)
    ids, label = data(1, rows=9)
    with pytest.raises(IndexError, match=r"7 at \[0\], 7 at \[1\], .* and 4 more"):
        model(ids, torch.full_like(label, 7))


def test_the_ignored_label_is_no_error() -> None:
    model = executor(training=False)
    ids, label = data(1)
    label[0] = -100
    model(ids, label)
    label[1] = -1
    with pytest.raises(IndexError, match=r"\(or -100, which is ignored\), but there is -1 at \[1\]"):
        model(ids, label)


class Advanced(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i, 0]


class Gather(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.gather(1, i.view(-1, 1))


class Select(nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_select(1, i)


@pytest.mark.parametrize(
    ("model", "operation", "allowed"),
    [
        (Advanced, "index", "from -2 to 1"),
        (Gather, "gather", "from 0 to 2"),
        (Select, "index_select", "from 0 to 2"),
    ],
)
@pytest.mark.parametrize("level", ["interpret", "native"])
def test_other_operations_with_indices(
    model: type[nn.Module], operation: str, allowed: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    x, i = torch.ones(2, 3), torch.tensor([0, 1])
    compiled = poptorch.inferenceModel(model())
    compiled(x, i)
    with pytest.raises((IndexError, RuntimeError)) as caught:
        compiled(x, torch.tensor([0, 8]))
    assert f"In operation {operation!r}, at {inspect.getsourcefile(model)}:" in str(caught.value)
    assert f"must be {allowed}, but there is 8 at [1" in str(caught.value)


class Asserting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "only positive numbers")
        return torch.log(x)


class Decomposing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x)


def test_a_failed_assertion_in_a_kernel() -> None:
    model = poptorch.inferenceModel(Asserting())
    model(torch.ones(2))
    with pytest.raises(RuntimeError, match="only positive numbers") as caught:
        model(-torch.ones(2))
    assert f"at {line_of(Asserting, '_assert_async')}" in str(caught.value)


@pytest.mark.parametrize("level", ["interpret", "native"])
def test_errors_of_torch_keep_their_type(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    model = poptorch.inferenceModel(Decomposing())
    model(torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError, match=r"In operation 'linalg_cholesky_ex'|'_linalg_check_errors'"):
        model(-torch.eye(2))


def test_an_error_of_a_host_function_reaches_the_caller_unchanged() -> None:
    class Own(Exception):
        pass

    def fail(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise Own("mine")
        return x

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.host = poptorch.CPU(fail, "fail")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.host(x)

    model = poptorch.inferenceModel(Calling())
    model(-torch.ones(2))
    with pytest.raises(Own) as caught:
        model(torch.ones(2))
    assert caught.value.args == ("mine",)
    assert frames(caught.value)[-1] == "fail"


def test_nothing_is_printed_again(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")

    class Printing(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return poptorch.ipu_print_tensor(x, "shown")[i]

    model = poptorch.inferenceModel(Printing())
    model(torch.ones(2), torch.tensor([0]))
    capfd.readouterr()
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.ones(2), torch.tensor([7]))
    assert capfd.readouterr().err.count("shown") <= 1


def test_the_error_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(IndexOutOfRange("Target 7 is out of bounds.")))
    assert isinstance(copy, IndexError)
    assert str(copy) == "Target 7 is out of bounds."


# -- tracebacks ----------------------------------------------------------------------------------------------------


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


class Wrong(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(4, 3), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.act(x))


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t()


def refusing(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("mine")


def chaining(x: torch.Tensor) -> torch.Tensor:
    try:
        return refusing(x)
    except ValueError as error:
        raise KeyError("other") from error


@pytest.mark.parametrize("method", ["call", "compile"])
def test_errors_in_forward_show_the_users_frames(method: str) -> None:
    model = poptorch.inferenceModel(Wrong(refusing))
    call = model if method == "call" else model.compile
    with pytest.raises(ValueError, match=r"^mine$") as caught:
        call(torch.ones(2, 4))
    assert len(frames(caught.value)) == 4
    assert frames(caught.value)[-2:] == ["forward", "refusing"]
    assert caught.value.__cause__ is None


def test_errors_of_torch_in_forward_end_at_the_users_line() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        poptorch.inferenceModel(Wrong(transposed))(torch.ones(2, 4))
    assert frames(caught.value)[-1] == "forward"
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("cannot be multiplied") == 1
    assert "torch/nn" not in text


def test_a_chain_of_the_user_stays() -> None:
    with pytest.raises(KeyError) as caught:
        poptorch.inferenceModel(Wrong(chaining))(torch.ones(2, 4))
    assert isinstance(caught.value.__cause__, ValueError)
    assert frames(caught.value)[-2:] == ["forward", "chaining"]
    assert frames(caught.value.__cause__)[-1] == "refusing"


def test_an_error_in_other_words_is_told_once() -> None:
    with pytest.raises(poptorch.Error, match="boolean or byte tensor masks") as caught:
        poptorch.inferenceModel(Wrong(lambda x: x[x > 0]))(torch.ones(2, 4))
    assert "aten.index.Tensor" not in "".join(traceback.format_exception(caught.value)).replace(str(caught.value), "")


def test_all_frames_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_FULL_TRACEBACK", "1")
    with pytest.raises(ValueError, match=r"^mine$") as caught:
        poptorch.inferenceModel(Wrong(refusing))(torch.ones(2, 4))
    assert len(frames(caught.value)) > 10
    model = executor(training=False)
    ids, label = data(1)
    with pytest.raises(IndexOutOfRange) as out_of_range:
        model(ids + 9, label)
    assert isinstance(out_of_range.value.__cause__, IndexError)
    assert "micro_batch" in frames(out_of_range.value.__cause__)


def test_run_time_errors_show_the_call_and_nothing_else() -> None:
    model = executor(training=False)
    ids, label = data(1)
    with pytest.raises(IndexOutOfRange) as caught:
        model(ids + 9, label)
    assert frames(caught.value)[1:] == ["__call__"]
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("out of range") == 1


@pytest.mark.parametrize("level", ["interpret", "native"])
@pytest.mark.parametrize("message", [(), ("too large",)])
def test_assertions_about_values(monkeypatch: pytest.MonkeyPatch, level: str, message: tuple[str, ...]) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)

    class Asserting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x < 5).all(), *message)  # the line of the assertion
            return x + 1

    model = poptorch.inferenceModel(Asserting())
    model(torch.ones(2))
    line = re.escape(line_of(Asserting, "the line of the assertion"))
    said = message[0] if message else "Expected Tensor with single nonzero value"
    with pytest.raises(RuntimeError, match=rf"{said}.*In operation '_assert_async', at {line}"):
        model(torch.full((2,), 9.0))
    assert model(torch.ones(2)).tolist() == [2.0, 2.0]
