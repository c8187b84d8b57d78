"""Random numbers on the device: seeds, streams, state (spec: executor §11)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import poptorch
from closeness import assert_close_sums


class Noise(nn.Module):
    """Samplers of several kinds."""

    def forward(self, x):
        return torch.rand_like(x), torch.randn_like(x), torch.bernoulli(x * 0 + 0.5), nn.functional.dropout(x + 1, 0.5)


class Dropout(nn.Module):
    """Returns what dropout let through and the gradient's view of it: the weight moves where the mask is one."""

    def __init__(self, size=64, use_checkpoint=False):
        super().__init__()
        self.w = nn.Parameter(torch.ones(size))
        self.dropout = nn.Dropout(0.5)
        self.use_checkpoint = use_checkpoint

    def forward(self, x):
        y = self.w * x
        z = checkpoint(self.dropout, y, use_reentrant=False) if self.use_checkpoint else self.dropout(y)
        return z, poptorch.identity_loss(z.sum(), reduction="none")


def seeded(seed=42, **settings):
    options = poptorch.Options().randomSeed(seed)
    for name, value in settings.items():
        getattr(options, name)(value)
    return options


X = torch.ones(64)


def test_equal_seeds_give_equal_numbers_and_calls_differ():
    runs = []
    for seed in (42, 42, 43):
        executor = poptorch.inferenceModel(Noise(), seeded(seed))
        runs.append([executor(X) for _ in range(2)])
    for call in range(2):
        for a, b, c in zip(runs[0][call], runs[1][call], runs[2][call], strict=True):
            assert torch.equal(a, b)
            assert not torch.equal(a, c)
    for first, second in zip(*runs[0], strict=True):
        assert not torch.equal(first, second)


def test_streams_of_one_program_are_independent():
    class Twice(nn.Module):
        def forward(self, x):
            return torch.rand_like(x), torch.rand_like(x)

    first, second = poptorch.inferenceModel(Twice(), seeded())(X)
    assert not torch.equal(first, second)


def test_without_a_seed_runs_differ():
    first, second = (poptorch.inferenceModel(Noise())(X)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_replicas_and_micro_batches_differ():
    options = seeded().deviceIterations(3).replicationFactor(2)
    numbers = poptorch.inferenceModel(Noise(), options)(torch.ones(6, 64))[0]
    assert len({tuple(row.tolist()) for row in numbers}) == 6


def test_accumulation_steps_differ():
    options = seeded().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(4)
    masks, _ = poptorch.trainingModel(Dropout(), options)(torch.ones(4, 64))
    assert len({tuple(row.tolist()) for row in masks}) == 4


@pytest.mark.parametrize("threads", [1, 3])
def test_numbers_do_not_depend_on_host_threads(threads):
    def run():
        return poptorch.inferenceModel(Noise(), seeded())(torch.ones(4096))

    expected = run()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for a, b in zip(run(), expected, strict=True):
            assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("use_checkpoint", [False, True])
def test_backward_uses_the_mask_of_forward(use_checkpoint):
    model = Dropout(use_checkpoint=use_checkpoint)
    options = seeded()
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        before = model.w.detach().clone()
        kept, _ = executor(X)
        expected = torch.where(kept != 0, 2.0, 0.0)
        assert 0 < int((kept != 0).sum()) < 64
        assert_close_sums((before - model.w.detach()) / 0.1, expected, terms=4, scale=1 / 0.1)  # weights of size 1


def test_distributions():
    uniform, normal, coin, dropped = poptorch.inferenceModel(Noise(), seeded())(torch.ones(20000))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.02)
    assert normal.mean().item() == pytest.approx(0, abs=0.04)
    assert normal.std().item() == pytest.approx(1, abs=0.04)
    assert coin.mean().item() == pytest.approx(0.5, abs=0.02)
    assert set(dropped.tolist()) == {0.0, 4.0}


def test_evaluation_mode_drops_nothing():
    assert poptorch.inferenceModel(nn.Dropout(0.5).eval())(X).tolist() == X.tolist()


def test_the_host_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    executor = poptorch.inferenceModel(Noise())
    executor(X)
    executor(X)
    assert torch.equal(torch.rand(3), expected)


def test_random_seed_seeds_the_host_at_once():
    poptorch.Options().randomSeed(11)
    first = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("wrong", ["42", 1.5, None])
def test_seeds_are_integers(wrong):
    with pytest.raises(AssertionError):
        poptorch.Options().randomSeed(wrong)


class TestState:
    def test_values(self):
        executor = poptorch.inferenceModel(Noise(), seeded(5))
        executor.compile(X)
        assert executor.rng_state == [5]
        executor(X)
        state = executor.rng_state
        assert state[0] == 5
        assert len(state) > 1
        assert all(isinstance(word, int) for word in state)

    def test_nothing_known_without_seed_and_run(self):
        executor = poptorch.inferenceModel(Noise())
        executor.compile(X)
        assert executor.rng_state is None
        executor(X)
        assert executor.rng_state

    def test_setting_the_state_repeats_the_numbers(self):
        executor = poptorch.inferenceModel(Noise(), seeded())
        executor(X)
        state = executor.rng_state
        first = executor(X)
        executor.rng_state = state
        state.append(99)
        again = executor(X)
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b)

    def test_one_element_sets_the_seed(self):
        expected = poptorch.inferenceModel(Noise(), seeded(9))(X)
        executor = poptorch.inferenceModel(Noise(), seeded(1))
        executor(X)
        executor.rng_state = [9]
        assert executor.rng_state[0] == 9
        for a, b in zip(executor(X), expected, strict=True):
            assert torch.equal(a, b)

    def test_set_while_detached(self):
        expected = poptorch.inferenceModel(Noise(), seeded(9))(X)
        executor = poptorch.inferenceModel(Noise(), seeded(1))
        executor(X)
        executor.detachFromDevice()
        executor.rng_state = [9]
        for a, b in zip(executor(X), expected, strict=True):
            assert torch.equal(a, b)

    def test_detach_keeps_the_position(self):
        def run(interrupt):
            executor = poptorch.trainingModel(Dropout(), seeded())
            losses = []
            for _ in range(4):
                losses.append(executor(X)[1].item())
                if interrupt:
                    executor.detachFromDevice()
                    assert executor.rng_state[0] == 42
            return losses

        assert run(True) == run(False)

    def test_destroy_starts_again_from_the_seed(self):
        executor = poptorch.inferenceModel(Noise(), seeded())
        first = executor(X)[0]
        executor.destroy()
        assert torch.equal(executor(X)[0], first)

    @pytest.mark.parametrize("wrong", [[], ["a"], [1.5]])
    def test_nonsense_is_refused_and_changes_nothing(self, wrong):
        executor = poptorch.inferenceModel(Noise(), seeded())
        executor(X)
        state = executor.rng_state
        with pytest.raises((poptorch.Error, TypeError, ValueError)):
            executor.rng_state = wrong
        assert executor.rng_state == state
        executor(X)
