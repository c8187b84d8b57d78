"""Automatic division into stages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


def wide(count=8, size=32):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(size, size), nn.ReLU()) for _ in range(count)))


class WithLoss(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, target):
        y = self.body(x)
        return y, nn.functional.mse_loss(y, target)


def starts(split):
    return [stage.first_module for stage in split.stages]


def test_equal_layers_are_divided_equally(capsys):
    split = poptorch.autoPipeline(wide(), 4, torch.ones(4, 32))
    assert starts(split) == ["", "2", "4", "6"]
    assert split.balance > 0.99
    printed = capsys.readouterr().out
    assert "balance 100%" in printed
    assert "gradientAccumulation of at least 7" in printed


def test_a_heavy_layer_gets_a_stage_of_its_own():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 512), nn.Linear(512, 512), nn.Linear(512, 8), nn.Linear(8, 8))
    split = poptorch.autoPipeline(model, 3, torch.ones(64, 8), verbose=False)
    assert starts(split)[1] == "2"


def test_the_annotated_model_trains_like_the_plain_one():
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(28, 32, generator=generator), torch.randn(28, 32, generator=generator)
    results = []
    for divided in (False, True):
        model = WithLoss(wide())
        options = poptorch.Options()
        options.Training.gradientAccumulation(7)
        if divided:
            poptorch.autoPipeline(model, 4, tuple(d[:4] for d in data), options, verbose=False)
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
        results.append([executor(*data)[1] for _ in range(2)])
        if divided:
            assert [p.ipu for p in executor.plan.parts] == [0, 1, 2, 3]
    assert_close_sums(*results, terms=32, steps=8)


def test_can_be_taken_back_and_repeated():
    model = wide()
    before = repr(model)
    poptorch.autoPipeline(model, 2, torch.ones(4, 32), verbose=False)
    assert "BeginBlock" in poptorch.module_repr(model)
    with pytest.raises(poptorch.Error, match=r"annotated already \(4\).*removeBlocks"):
        poptorch.autoPipeline(model, 2, torch.ones(4, 32))
    poptorch.removeBlocks(model)
    assert repr(model) == before == poptorch.module_repr(model)
    poptorch.autoPipeline(model, 4, torch.ones(4, 32), verbose=False)


def test_nothing_of_the_model_changes_while_it_is_measured():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 8))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    poptorch.autoPipeline(model, 2, torch.ones(4, 8), verbose=False)
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_models_that_need_values():
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                if x.sum().item() > 1e9:
                    x = x * 0
            return x

    split = poptorch.autoPipeline(Choosing(), 2, torch.ones(4, 8), verbose=False)
    assert starts(split) == ["", "layers.2"]


def test_a_module_that_runs_twice_begins_no_stage():
    class Looping(nn.Module):
        def __init__(self):
            super().__init__()
            self.again, self.once = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.once(self.again(self.again(self.again(x))))

    assert starts(poptorch.autoPipeline(Looping(), 2, torch.ones(4, 8), verbose=False)) == ["", "once"]


def test_keyword_arguments():
    split = poptorch.autoPipeline(
        WithLoss(wide(4)), 2, {"x": torch.ones(4, 32), "target": torch.ones(4, 32)}, verbose=False
    )
    assert starts(split) == ["", "body.2"]


@pytest.mark.parametrize("count", [0, 65, 2.0, True])
def test_numbers_of_ipus_that_make_no_sense(count):
    with pytest.raises(poptorch.Error, match="num_ipus must be from 1 to 64"):
        poptorch.autoPipeline(wide(), count, torch.ones(4, 32))


def test_too_few_modules():
    with pytest.raises(poptorch.Error, match="only 1 of its modules can begin a stage"):
        poptorch.autoPipeline(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 4, torch.ones(1, 2))


def test_strategies_that_do_not_fit():
    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution("mine", "yours"))
    with pytest.raises(poptorch.Error, match="which the strategy of the options does not know"):
        poptorch.autoPipeline(wide(), 2, torch.ones(4, 32), options)
    options.setExecutionStrategy(poptorch.SerialPhasedExecution("stage 0", "stage 1"))
    with pytest.raises(poptorch.Error, match="not for SerialPhasedExecution"):
        poptorch.autoPipeline(wide(), 2, torch.ones(4, 32), options)


def test_a_module_that_costs_nothing_is_no_border():
    """The end of a layer is a dropout of probability 0: the stage begins with the next layer, not inside this one."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = nn.Linear(16, 16), nn.Dropout(0.0)

        def forward(self, x):
            return self.dropout(self.linear(x))

    split = poptorch.autoPipeline(nn.Sequential(*(Layer() for _ in range(4))), 2, torch.ones(2, 16), verbose=False)
    assert [stage.first_module for stage in split.stages] == ["", "2"]
