"""Everyone who runs a workload: eager PyTorch, ``torch.compile`` of the whole step, and wrapped models.

    steps = contender("ours-native", WORKLOADS["lstm"], "train-adamw")
    steps.call()                 # one call does steps.count optimizer steps, or inferences

Nothing is compiled before the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from results import COMPILED
from torch.utils.flop_counter import FlopCounterMode
from workloads import Workload

import poptorch

Step = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Steps:
    """What a contender does in one call, and how many steps of the workload that is."""

    call: Step
    count: int = 1
    executor: poptorch.PoplarExecutor | None = None
    """Ours only."""


def contender(name: str, workload: Workload, mode: str, iterations: int = 1, accumulation: int = 1) -> Steps:
    """One contender, not yet compiled.

    ``accumulation`` micro-batches make a step. ``iterations`` steps make a call of ours (``deviceIterations``); for
    the peers, which have no such thing, a call is a step. Ours reads its level at the first call: make that call
    before the next contender is made.
    """
    if name.startswith("ours-"):
        os.environ["POPTORCH_CODEGEN"] = name.removeprefix("ours-")
        return _wrapped(workload, mode, iterations, accumulation)
    model, inputs = _prepared(workload, mode)
    if mode == "inference":
        # Not the whole step: compiled together with the inference mode around it, embeddings fail in torch 2.13.
        compiled: Any = torch.compile(model, mode=COMPILED[name]) if name in COMPILED else model
        return Steps(_inference(compiled, inputs))
    step = _training(model, inputs, _optimizer(mode, model, name.removeprefix("eager-")), accumulation)
    return Steps(torch.compile(_with_code_of_its_own(step), mode=COMPILED[name]) if name in COMPILED else step)


def switch_of_auto(workload: Workload, mode: str, iterations: int = 1) -> int | None:
    """How many calls ``auto``, the default, interprets before it changes to native code; ``None``: all of them."""
    os.environ["POPTORCH_BACKGROUND"] = "0"  # as if there were no cache
    executor = contender("ours-auto", workload, mode, iterations).executor
    assert executor is not None
    _, inputs = _prepared(workload, mode)
    executor.compile(*_stacked(inputs, iterations))
    return executor.executable.code.native_after


def counted_gflop(workload: Workload, mode: str) -> float:
    """Floating-point operations of one step, in 10^9: matrix products and convolutions."""
    # Without oneDNN, whose recurrent layers are single operations that the counter knows nothing about.
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        contender("eager", workload, mode).call()
    return counter.get_total_flops() / 1e9


def _prepared(workload: Workload, mode: str) -> tuple[torch.nn.Module, Tensors]:
    torch.manual_seed(0)
    model, inputs = workload.model(), workload.inputs()
    if mode == "inference":
        return model.eval(), inputs
    return model.train(), (*inputs, workload.target())


def _optimizer(mode: str, model: torch.nn.Module, kind: str = "") -> torch.optim.Optimizer:
    chosen: dict[str, bool] = {kind: True} if kind in ("foreach", "fused") else {}
    if mode == "train-sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **chosen)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **chosen)


def _training(model: torch.nn.Module, inputs: Tensors, optimizer: torch.optim.Optimizer, accumulation: int) -> Step:
    if accumulation == 1:

        def step() -> object:
            optimizer.zero_grad(set_to_none=True)
            loss = model(*inputs)
            loss.backward()
            optimizer.step()
            return loss
    else:
        # Everyone gets the whole batch and cuts it.
        micro_batches = list(zip(*(t.chunk(accumulation) for t in _stacked(inputs, accumulation)), strict=True))

        def step() -> object:
            optimizer.zero_grad(set_to_none=True)
            for micro_batch in micro_batches:
                loss = model(*micro_batch)
                (loss / accumulation).backward()
            optimizer.step()
            return loss

    return step


def _inference(model: torch.nn.Module, inputs: Tensors) -> Step:
    def step() -> object:
        with torch.inference_mode():
            return model(*inputs)

    return step


def _with_code_of_its_own(step: Step) -> Step:
    """Dynamo keeps what it compiled with the code object: two contenders must not look through each other's guards."""
    assert isinstance(step, FunctionType)
    return FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__, step.__closure__)


def _wrapped(workload: Workload, mode: str, iterations: int, accumulation: int) -> Steps:
    model, inputs = _prepared(workload, mode)
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    if mode == "inference":
        executor = poptorch.inferenceModel(model, options)
    else:
        options.Training.gradientAccumulation(accumulation)
        executor = poptorch.trainingModel(model, options, _optimizer(mode, model))
    batch = _stacked(inputs, iterations * accumulation)
    return Steps(lambda: executor(*batch), iterations, executor)


def _stacked(inputs: Tensors, times: int) -> list[torch.Tensor]:
    return [torch.cat([t] * times) if times > 1 else t for t in inputs]
