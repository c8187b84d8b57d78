"""What a random program must return, computed by eager PyTorch in float64."""

from __future__ import annotations

import copy

import torch
from random_programs import CALLS, OPTIMIZERS, ROWS, Program

from poptorch import OutputMode

Results = list[tuple[torch.Tensor, ...]]


def expected(program: Program, masks: list[torch.Tensor] | None) -> tuple[Results, dict[str, torch.Tensor]]:
    """Outputs and losses of each call, and the weights at the end; ``masks`` are those that the program drew."""
    model = copy.deepcopy(program.model()).double()
    optimizer = OPTIMIZERS[program.optimizer][1](model.parameters())
    per_update = program.accumulation * program.replicas
    results = []
    for call in range(CALLS):
        x, target = (tensor.double().split(ROWS) for tensor in program.data(call))
        outputs, losses, gradients = [], [], []
        drawn = [None] * len(x) if masks is None else masks[call].double().split(ROWS)
        for position, micro_batch in enumerate(zip(x, target, drawn, strict=True), start=1):
            y, loss, _ = model(*micro_batch, replica=(position - 1) % program.replicas)
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
        results.append((_gathered(outputs, program), _gathered(losses, program), *anchored))
    return results, {name: value.detach() for name, value in model.state_dict().items()}


def _gathered(values: list[torch.Tensor], program: Program) -> torch.Tensor:
    """What a call returns of the values of its micro-batches: iterations, then accumulation steps, then replicas."""
    replicas, per_iteration = program.replicas, program.accumulation * program.replicas
    if program.mode is OutputMode.EveryN:
        values = [v for i, v in enumerate(values) if (i // per_iteration + 1) % program.period == 0]
    elif program.mode is OutputMode.Final:
        values = values[-replicas:]
    elif program.mode is OutputMode.Sum:
        values = [torch.stack(values[replica::replicas]).sum(0) for replica in range(replicas)]
    return torch.cat(values)
