"""The weight update when the optimizer's state is sharded: every replica updates the elements that it owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from poptorch.devices.cores import CoreShare
from poptorch.executable.host_code import Code
from poptorch.program.update import State, UpdateProgram, UpdateShard, flat_arguments
from poptorch.runtime.tasks import Task, TaskGraph
from poptorch.runtime.workers import run_tasks
from poptorch.schedule import Job, Kind


def update_shards(
    whole: UpdateProgram,
    codes: Sequence[Code],
    parameters: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    states: Sequence[State],
    hyper: Sequence[Mapping[str, torch.Tensor]],
) -> None:
    """Run all shards of an update, side by side. Gradients are already reduced: a slice of them is the scatter."""
    shards = whole.shards
    prepared = [_arguments(whole, shard, parameters, gradients, states) for shard in shards]
    graph = TaskGraph()
    for index, shard in enumerate(shards):
        graph.tasks.append(Task(index, Job(0, Kind.BACKWARD, 0), shard.owner, 0, None, 0))
        graph.waits_for.append(set())

    def execute(task: Task) -> None:
        codes[task.index].run(None, *flat_arguments(*prepared[task.index], hyper))

    run_tasks(graph, execute, CoreShare.of(len(shards)))


def _arguments(
    whole: UpdateProgram,
    shard: UpdateShard,
    parameters: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    states: Sequence[State],
) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]], list[State]]:
    own_parameters, own_gradients, own_states = [], [], []
    for names, state in zip(whole.parameters, states, strict=True):
        mine = [name for name in names if name in shard.ranges]
        own_parameters.append([_slice(parameters[name], shard.ranges[name], flat=name in whole.held) for name in mine])
        own_gradients.append([_slice(gradients[name], _within(whole, shard, name)) for name in mine])
        own: State = {}
        for key, tensors in state.items():
            by_name = dict(zip(names, tensors, strict=True))
            own[key] = [_state_slice(by_name[name], whole, shard, name, parameters[name].shape) for name in mine]
        own_states.append(own)
    return own_parameters, own_gradients, own_states


def _slice(tensor: torch.Tensor, bounds: tuple[int, int], flat: bool = False) -> torch.Tensor:
    return tensor.reshape(-1)[bounds[0] : bounds[1]] if flat or tensor.dim() else tensor


def _within(whole: UpdateProgram, shard: UpdateShard, name: str) -> tuple[int, int]:
    """Where the elements of a shard are among those that this process holds."""
    start, stop = shard.ranges[name]
    first, _ = whole.held.get(name, (0, 0))
    return start - first, stop - first


def _state_slice(
    state: torch.Tensor, whole: UpdateProgram, shard: UpdateShard, name: str, shape: torch.Size
) -> torch.Tensor:
    start, stop = _within(whole, shard, name)
    if state.dim() and (name in whole.held or state.shape == shape):
        return state.view(-1)[start:stop]
    # A number for the whole tensor, such as a step count: the first owner's is the one that counts.
    return state if start == 0 else state.clone()
