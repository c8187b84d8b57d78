"""What a random program must return, computed by eager PyTorch in float64."""

from __future__ import annotations

import copy

import torch
from random_programs import CALLS, OPTIMIZERS, ROWS, Program

from poptorch import OutputMode

Results = list[tuple[torch.Tensor, ...]]


def expected(program: Program) -> tuple[Results, dict[str, torch.Tensor]]:
    """Outputs and losses of each call, and the weights at the end."""
    model = copy.deepcopy(program.model()).double()
    optimizer = OPTIMIZERS[program.optimizer][1](model.parameters())
    per_update = program.accumulation * program.replicas
    results = []
    for call in range(CALLS):
        x, target = (tensor.double().split(ROWS) for tensor in program.data(call))
        outputs, losses, gradients = [], [], []
        for position, micro_batch in enumerate(zip(x, target, strict=True), start=1):
            y, loss = model(*micro_batch)
            outputs.append(y.detach())
            losses.append(loss.detach().reshape(1))
            if program.anchor:
                gradients += torch.autograd.grad(loss, [model.head.weight], retain_graph=True)
            if program.training:
                (loss / per_update if program.mean else loss).backward()
                if position % per_update == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        anchored = [torch.cat(gradients)] if gradients else []
        results.append((_gathered(outputs, program.mode), _gathered(losses, program.mode), *anchored))
    return results, {name: value.detach() for name, value in model.state_dict().items()}


def _gathered(values: list[torch.Tensor], mode: OutputMode) -> torch.Tensor:
    if mode is OutputMode.All:
        return torch.cat(values)
    return values[-1] if mode is OutputMode.Final else torch.stack(values).sum(0)
