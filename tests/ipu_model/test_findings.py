"""Planted problems: what an estimate finds must be the cause, with its line, and what it advises must help."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import poptorch
from poptorch.ipu_model import estimate
from poptorch.ipu_model.findings import HINT, LEVELS, NOTE, PROBLEM


def line_of(function, text: str) -> str:
    """``file:line`` of the statement with this text."""
    lines, first = inspect.getsourcelines(function)
    (place,) = (number for number, line in enumerate(lines, first) if text in line)
    return f"test_findings.py:{place}"


def meta(rows: int, *sizes: int, dtype=torch.float16) -> torch.Tensor:
    return torch.empty(rows, *sizes, dtype=dtype, device="meta")


class Wide(nn.Module):
    """Layers over two IPUs."""

    def __init__(self, layers: int = 6, split: int = 3, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        if split:
            poptorch.BeginBlock(self.layers[split], ipu_id=1)

    def forward(self, x):
        y = x
        for number, layer in enumerate(self.layers):
            y = self.after(layer(y), number)
        return nn.functional.mse_loss(y, x)

    def after(self, y, number):
        return torch.relu(y)


class Sorting(Wide):
    def after(self, y, number):
        y = torch.relu(y)
        if number == 4:
            y = torch.sort(y, dim=-1)[0]
        return y


def training(model, accumulation=32, rows=64, width=256, options=None, dtype=torch.float16, **chip):
    options = poptorch.Options() if options is None else options
    options.Training.gradientAccumulation(accumulation)
    options.Precision.setPartialsType(torch.float16)
    model = model.to("meta", dtype)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    given = meta(rows * accumulation, width, dtype=dtype)
    return estimate(model, options, given, optimizer=optimizer, arch="mk2", **chip)


def first(found, *levels):
    return next(it for it in found.findings if it.level in (levels or (PROBLEM, HINT)))


class TestPlanted:
    def test_a_sort_is_found_with_its_line(self):
        """Moving layers would be advice about the place; the cause is one statement."""
        found = training(Sorting())
        busy = sum(stage.cycles for stage in found.stages if stage.ipu == 1)
        sorting = sum(r.cycles.total for s in found.stages for r in s.operations if "sort" in r.operator)
        assert sorting > 0.3 * busy
        top = first(found)
        assert top.kind == "hot line"
        assert top.title.startswith("sort takes")
        assert "the slowest stage (IPU 1)" in top.title
        assert top.source.endswith(line_of(Sorting.after, "torch.sort"))
        assert "layers" not in top.title

    def test_an_unbalanced_split_is_moved(self):
        found = training(Wide(split=5))
        uneven = next(it for it in found.findings if it.kind == "uneven stages")
        assert 'poptorch.BeginBlock(model.get_submodule("layers.' in uneven.action
        (gain,) = (float(uneven.effect.split()[1].rstrip("%")) for _ in [0])
        assert gain > 10
        # What it says is what happens when it is done.
        moved = int(uneven.action.partition("split to layers.")[2].partition(",")[0])
        after = training(Wide(split=moved))
        assert after.throughput / found.throughput - 1 == pytest.approx(gain / 100, abs=0.002)

    def test_a_fat_temporary_is_blamed_before_a_softmax(self):
        class Fat(nn.Module):
            def __init__(self):
                super().__init__()
                self.wide = nn.Linear(4096, 4096, bias=False)

            def forward(self, x):
                return torch.softmax(self.wide(x), -1)

        model = Fat().to("meta", torch.float16)
        options = poptorch.Options().deviceIterations(2)
        found = estimate(model, options, meta(2 * 2048, 4096), arch="mk2", memory_per_tile=400_000)
        fat = next(it for it in found.findings if it.kind in ("temporary memory", "out of memory"))
        assert line_of(Fat.forward, "self.wide(x)") in fat.text
        name, what, size = found.ipus[0].blame(1)[0]
        assert what.startswith("temporary")
        assert size > 100 * 2**20
        assert "softmax" not in name

    def test_float32_where_half_would_do(self):
        found = training(Wide(split=0, width=512), 2, 512, 512, dtype=torch.float32)
        it = next(it for it in found.findings if it.kind == "precision")
        assert "model.half()" in it.action
        gain = float(it.effect.split()[1].rstrip("%"))
        after = training(Wide(split=0, width=512), 2, 512, 512, dtype=torch.float16)
        assert after.throughput / found.throughput - 1 == pytest.approx(gain / 100, abs=0.01)

    def test_input_that_the_host_cannot_send_fast_enough(self):
        class Pools(nn.Module):
            def forward(self, x):
                return x.mean((-1, -2))

        options = poptorch.Options().deviceIterations(8)
        found = estimate(Pools(), options, meta(8 * 4, 3, 224, 224, dtype=torch.float32), arch="mk2")
        assert found.bound_by == "host"
        top = first(found)
        assert top.kind == "host"
        assert "GB/s" in top.text
        assert top.action
        assert "samples/s +" in top.effect


class TestHonesty:
    def test_a_model_far_from_its_peak_stands_out(self):
        found = training(Wide(2, 0, 64), 4, 8, 64)
        assert any(it.kind == "roofline" and it.level == HINT for it in found.findings)

    def test_levels_are_in_order(self):
        levels = [LEVELS.index(it.level) for it in training(Sorting()).findings]
        assert levels == sorted(levels)

    def test_nothing_is_advised_without_its_effect(self):
        for found in (training(Sorting()), training(Wide(split=5)), training(Wide(), memory_per_tile=20_000)):
            for it in found.findings:
                assert bool(it.action) == bool(it.effect), it
                assert it.level in (PROBLEM, HINT, NOTE)

    def test_every_suggestion_frees_what_it_says(self):
        """Smaller micro-batches need accumulators that a single one does not: what does not help is not said."""
        roomy = training(Wide(4, 0), 1, 16)
        found = training(Wide(4, 0), 1, 16, memory_per_tile=roomy.ipus[0].peak_tile_bytes - 8)
        assert not found.fits
        assert found.ways_to_fit
        for ipu, tried in found.ways_to_fit:
            assert tried.freed_on_tile(ipu) > 0
            assert tried.after.ipu(ipu).peak_tile_bytes < found.ipu(ipu).peak_tile_bytes
        assert found.bench.estimate().cycles == found.cycles  # the bench estimates the model itself, too

    def test_a_program_without_its_model_is_not_advised(self):
        executor = poptorch.inferenceModel(nn.Linear(8, 8))
        executor(torch.ones(2, 8))
        found = estimate(executor, arch="mk2")
        assert found.bench is None
        assert all(not it.action for it in found.findings)
