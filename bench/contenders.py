"""Everyone who runs a workload: eager PyTorch, ``torch.compile`` of the whole step, and wrapped models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from workloads import Workload

import poptorch

Step = Callable[[], object]
OPTIMIZERS = ("sgd", "adamw")


def _optimizer(name: str, parameters: object, fused: bool) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=fused or None)  # type: ignore[arg-type]
    return torch.optim.AdamW(parameters, lr=1e-4, fused=fused or None)  # type: ignore[arg-type]


def _prepared(workload: Workload, training: bool) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = workload.model()
    inputs = workload.inputs()
    if training:
        return model.train(), (*inputs, workload.target())
    return model.eval(), inputs


def eager_training(workload: Workload, optimizer: str, fused: bool = False) -> Step:
    model, inputs = _prepared(workload, training=True)
    opt = _optimizer(optimizer, model.parameters(), fused)

    def step() -> object:
        opt.zero_grad(set_to_none=True)
        loss = model(*inputs)
        loss.backward()
        opt.step()
        return loss

    return step


def compiled_training(workload: Workload, optimizer: str) -> Step:
    """``torch.compile`` of forward, backward and optimizer."""
    model, inputs = _prepared(workload, training=True)
    opt = _optimizer(optimizer, model.parameters(), fused=False)

    @torch.compile
    def forward(*tensors: torch.Tensor) -> torch.Tensor:
        return model(*tensors)

    @torch.compile(fullgraph=False)
    def update() -> None:
        opt.step()

    def step() -> object:
        opt.zero_grad(set_to_none=True)
        loss = forward(*inputs)
        loss.backward()
        update()
        return loss

    return step


def eager_inference(workload: Workload) -> Step:
    model, inputs = _prepared(workload, training=False)

    def step() -> object:
        with torch.inference_mode():
            return model(*inputs)

    return step


def compiled_inference(workload: Workload) -> Step:
    model, inputs = _prepared(workload, training=False)
    compiled = torch.compile(model)

    def step() -> object:
        with torch.inference_mode():
            return compiled(*inputs)

    return step


def wrapped_training(workload: Workload, optimizer: str, iterations: int = 1) -> Step:
    """Ours; with more than one device iteration, the time of one call covers as many steps."""
    model, inputs = _prepared(workload, training=True)
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, _optimizer(optimizer, model.parameters(), fused=False))
    batch = [torch.cat([t] * iterations) for t in inputs]
    return lambda: executor(*batch)


def wrapped_inference(workload: Workload) -> Step:
    model, inputs = _prepared(workload, training=False)
    executor = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))
    return lambda: executor(*inputs)
