"""The loss scale of a call, from the counts that programs deliver."""

from __future__ import annotations

import torch

import poptorch
from poptorch.optim.auto_loss_scale import AutomaticLossScale, LossScalingSettings
from poptorch.program.loop import MicroBatch
from poptorch.runtime.exchange import LocalExchange
from poptorch.runtime.loss_scale import LossScale, Tally

ELEMENTS = 100


def automatic(update_period: int = 1, dtype: torch.dtype = torch.float32) -> LossScale:
    scale = LossScale(ELEMENTS)
    scale.chosen = torch.tensor(3.0)
    scale.scaler = AutomaticLossScale(LossScalingSettings(update_period=update_period), dtype)
    scale.begin()
    return scale


def advance(scale: LossScale, *large: int) -> float:
    """One update after micro-batches with so many large elements each; the loss scale of the next one."""
    for step, count in enumerate(large):
        scale.tally.put(MicroBatch(0, step, 0), torch.tensor(count))
    scale.advance(LocalExchange())
    return float(scale.current[0])


def test_it_doubles_with_each_update_while_no_gradient_is_large() -> None:
    scale = automatic()
    assert float(scale.current[0]) == 3.0
    assert [advance(scale, 0) for _ in range(4)] == [6.0, 12.0, 24.0, 48.0]


def test_it_halves_when_any_micro_batch_has_large_gradients() -> None:
    scale = automatic()
    assert advance(scale, 0, 1, 0) == 1.5
    assert advance(scale, 0) == 3.0  # the counts started anew


def test_between_two_periods_nothing_counts() -> None:
    scale = automatic(update_period=3)
    assert [advance(scale, count) for count in (50, 0, 1, 50, 50, 0)] == [3.0, 3.0, 1.5, 1.5, 1.5, 3.0]


def test_counts_of_a_failed_call_are_forgotten() -> None:
    scale = automatic()
    scale.tally.put(MicroBatch(0, 0, 0), torch.tensor(ELEMENTS))
    scale.begin()
    assert advance(scale, 0) == 6.0


def test_all_processes_count_together() -> None:
    class Other(LocalExchange):
        def sum_counts(self, count: int) -> int:
            return count + 1

    scale = automatic()
    scale.advance(Other())
    assert float(scale.current[0]) == 1.5


def test_the_factor_keeps_the_type_of_the_loss() -> None:
    scale = automatic(dtype=torch.float16)
    advance(scale, 0)
    assert scale.scaler is not None
    assert scale.scaler.factor.dtype == torch.float16
    assert scale.current[0].dtype == torch.float32


def test_without_automatic_scaling_it_is_what_the_optimizer_says() -> None:
    scale = LossScale(ELEMENTS)
    scale.chosen = torch.tensor(3.0)
    scale.begin()
    assert advance(scale) == 3.0


def test_programs_count_whatever_is_not_below_the_edge(monkeypatch) -> None:
    class Known(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(6, dtype=torch.float16))

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).sum(), reduction="none")

    counts: list[int] = []
    monkeypatch.setattr(Tally, "put", lambda self, micro_batch, value: counts.append(int(value)))
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    module = Known()
    model = poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=0.01))
    model(torch.tensor([8188, -60000, 1, 8184, float("inf"), float("nan")], dtype=torch.float16))
    assert sum(counts) == 4
