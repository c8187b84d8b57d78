"""Which jobs of a pipeline may run side by side on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from host_code import runner_of
from poptorch.host import width as widths
from poptorch.host.width import width
from poptorch.schedule import Kind


class Stages(nn.Module):
    def __init__(self, *, writes: bool = False, prints: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("count", torch.zeros(()))
        self.writes, self.prints = writes, prints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(f"stage {index}", ipu_id=index)
            x = layer(x)
            if self.writes and index == 1:
                self.count += 1.0
                x = x * self.count
            if self.prints and index == 1:
                x = poptorch.ipu_print_tensor(x)
        return poptorch.identity_loss(x.mean(), reduction="none") if self.training else x


def runner(model: nn.Module, micro: int = 6, training: bool = True) -> Any:
    return runner_of(compiled(model, micro, training))


def width_of(model: Any, replicas: int) -> int:
    return width(model.plan, [stage.description for stage in model.executable.code.stages], replicas)


def compiled(model: nn.Module, micro: int = 6, training: bool = True) -> Any:
    options = poptorch.Options().autoRoundNumIPUs(True)
    if training:
        options.Training.gradientAccumulation(micro)
        wrapped = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    else:
        wrapped = poptorch.inferenceModel(model.eval(), options.deviceIterations(micro))
    wrapped(torch.ones(micro, 4))
    return wrapped


def waits(graph: Any) -> dict[tuple[Kind, int, int], set[tuple[Kind, int, int]]]:
    """Which jobs wait for which, directly or not: kind, part, micro-batch."""
    named = [(t.job.kind, t.job.part, t.job.micro) for t in graph.tasks]
    closed: list[set[int]] = []
    for needed in graph.waits_for:
        closed.append(set(needed).union(*(closed[n] for n in needed)))
    return {name: {named[n] for n in needed} for name, needed in zip(named, closed, strict=True)}


def test_neighbouring_micro_batches_do_not_wait_for_each_other() -> None:
    order = waits(runner(Stages()).graph)
    for part in range(3):
        assert (Kind.FORWARD, part, 0) not in order[Kind.FORWARD, part, 1]
        assert (Kind.BACKWARD, part, 0) not in order[Kind.BACKWARD, part, 1]


def test_few_micro_batches_are_under_way_in_a_stage() -> None:
    """A forward pass waits until all but a few of those before it were taken up by the backward pass."""
    order = waits(runner(Stages(), micro=12).graph)
    for part in range(3):
        for micro in range(12):
            done = {m for kind, p, m in order[Kind.FORWARD, part, micro] if kind is Kind.BACKWARD and p == part}
            assert micro - len(done) <= 3 - part + 1


def test_inference_does_not_run_far_ahead_of_the_next_stage() -> None:
    order = waits(runner(Stages(), micro=12, training=False).graph)
    for micro in range(4, 12):
        assert (Kind.FORWARD, 1, micro - 4) in order[Kind.FORWARD, 0, micro]


@pytest.mark.parametrize("kind", ["writes", "prints"])
def test_micro_batches_of_stages_that_leave_something_behind_follow_each_other(kind: str) -> None:
    order = waits(runner(Stages(**{kind: True})).graph)
    for part in range(3):
        assert (Kind.FORWARD, part, 0) in order[Kind.FORWARD, part, 1]
        assert (Kind.BACKWARD, part, 0) in order[Kind.BACKWARD, part, 1]


# -- threads -------------------------------------------------------------------------------------------------------


def test_stages_that_take_no_longer_than_handing_them_over_stay_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled(Stages())
    monkeypatch.undo()  # other tests let workers run whatever can run in parallel
    assert widths.WORTH_A_THREAD_SECONDS > 0
    assert width_of(model, replicas=1) == 1
    monkeypatch.setattr(widths, "WORTH_A_THREAD_SECONDS", 1e-9)
    assert width_of(model, replicas=1) == 3
    assert width_of(model, replicas=2) == 6


def test_what_an_operation_of_another_library_takes_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled(Stages(prints=True))
    monkeypatch.undo()
    assert width_of(model, replicas=1) == 3


@pytest.mark.parametrize("training", [True, False])
def test_one_thread_gives_the_bits_of_several(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Stages()
        options = poptorch.Options().autoRoundNumIPUs(True).randomSeed(1)
        x = torch.randn(6, 4)
        if not training:
            return [poptorch.inferenceModel(model.eval(), options.deviceIterations(6))(x)]
        options.Training.gradientAccumulation(6)
        wrapped = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
        losses = [wrapped(x).clone() for _ in range(3)]
        wrapped.copyWeightsToHost()
        return [*losses, *(p.detach().clone() for p in model.parameters())]

    several = run()
    monkeypatch.setattr(widths, "WORTH_A_THREAD_SECONDS", float("inf"))
    for a, b in zip(several, run(), strict=True):
        assert torch.equal(a, b)
