"""Estimates: time, memory and what is said about them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import poptorch
from poptorch.ipu_model import estimate
from poptorch.ipu_model.timeline import RESOURCES

WIDTH = 32


class Layers(nn.Module):
    """Equal layers over some IPUs, with a loss."""

    def __init__(self, layers: int = 4, ipus: int = 1, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Sigmoid(), nn.Tanh()) for _ in range(layers)
        )
        for ipu in range(1, ipus):
            poptorch.BeginBlock(self.layers[ipu * layers // ipus], ipu_id=ipu)

    def forward(self, x):
        y = x
        for layer in self.layers:
            y = layer(y)
        return nn.functional.mse_loss(y, x)


def inputs(rows: int, width: int = WIDTH) -> torch.Tensor:
    return torch.empty(rows, width, device="meta")


def training(model, accumulation=1, replicas=1, rows=2, **keywords):
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    locations = keywords.pop("optimizer_location", None)
    if locations is not None:
        options.TensorLocations.setOptimizerLocation(locations)
    io_tiles = keywords.pop("io_tiles", None)
    if io_tiles is not None:
        options.TensorLocations.numIOTiles(io_tiles)
    recomputation = keywords.pop("recomputation", None)
    if recomputation is not None:
        options._Popart.set("autoRecomputation", recomputation)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    given = inputs(rows * accumulation * replicas, keywords.pop("width", WIDTH))
    return estimate(model, options, given, optimizer=optimizer, **keywords)


class TestFigures:
    def test_everything_is_there(self):
        options = poptorch.Options().deviceIterations(3)
        found = estimate(Layers().to("meta"), options, inputs(6))
        assert found.cycles > 0
        assert found.samples == 6
        assert found.throughput == pytest.approx(6 / found.seconds)
        assert 0 < found.latency < found.seconds
        assert found.fits
        assert found.bound_by in RESOURCES
        assert found.ipus[0].peak_tile_bytes > 0
        assert found.ipus[0].memory["weights"] == 4 * (WIDTH * WIDTH + WIDTH) * 4
        assert sum(found.ipus[0].memory.values()) == found.ipus[0].total
        assert found.assumptions
        (stage,) = found.stages
        assert {record.scope.partition("/")[0] for record in stage.operations} >= {"layers.0", "layers.3"}
        assert any("test_estimate.py" in record.source for record in stage.operations)
        assert len(found.ipus[0].liveness.moments) == len(list(found.device.program.operations()))

    def test_tools_and_people_can_read_it(self):
        found = training(Layers(ipus=2).to("meta"), accumulation=4)
        read = json.loads(json.dumps(found.to_dict()))
        assert read["cycles"] == found.cycles
        assert [ipu["ipu"] for ipu in read["ipus"]] == [0, 1]
        for part in ("throughput", "latency", "bound by", "bubbles", "weights", "fullest tile", "assumed"):
            assert part in str(found)
        assert "+0.0%" in found.compare(found)

    def test_weights_need_no_values_and_are_not_changed(self):
        real = Layers()
        before = {name: value.data_ptr() for name, value in real.named_parameters()}
        assert training(real).cycles == training(Layers().to("meta")).cycles
        assert {name: value.data_ptr() for name, value in real.named_parameters()} == before

    def test_equal_layers_are_worked_out_once(self):
        few, many = (training(Layers(layers).to("meta")) for layers in (4, 8))
        assert many.operations > few.operations
        assert many.kinds == few.kinds

    def test_a_faster_clock_takes_less_time(self):
        slow, fast = (training(Layers().to("meta"), clock=clock) for clock in (1e9, 2e9))
        assert fast.seconds < slow.seconds


class TestSaving:
    def test_forms(self, tmp_path):
        found = estimate(Layers().to("meta"), poptorch.Options(), inputs(2))
        assert json.loads(found.save(tmp_path / "x.json").read_text())["cycles"] == found.cycles
        assert "throughput" in found.save(tmp_path / "x.txt").read_text()
        assert "<html" in found.save(tmp_path / "x.html", "layers").read_text()
        report = poptorch.report.openReport(found.save(tmp_path / "folder"))
        assert report.compilation.target.architecture is not None
        with pytest.raises(poptorch.Error, match="saved as"):
            found.save(tmp_path / "x.pdf")


class TestPipelines:
    def test_stochastic_rounding_does_not_change_what_is_computed_again(self):
        found = []
        for rounding in (False, True):
            model = Layers(ipus=2).to("meta").half()
            options = poptorch.Options()
            options.Training.gradientAccumulation(8)
            options.Precision.enableStochasticRounding(rounding)
            optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
            found.append(estimate(model, options, inputs(16).half(), optimizer=optimizer))
            assert options._Popart.options["enableStochasticRounding"] is rounding
        assert found[0].to_dict() == found[1].to_dict()

    def test_each_further_micro_batch_takes_one_cycle(self):
        model = Layers(ipus=2).to("meta")
        seven, eight, many = (training(model, accumulation) for accumulation in (7, 8, 2000))
        cycle = seven.timeline.cycle
        assert eight.cycles - seven.cycles == pytest.approx(cycle, abs=1)
        assert many.cycles - seven.cycles == pytest.approx(1993 * cycle, rel=1e-6)
        assert many.bubble < eight.bubble < seven.bubble

    def test_fill_and_drain(self):
        """A pipeline of two stages with one micro-batch in each: add up the cycles by hand."""
        found = training(Layers(ipus=2).to("meta"), accumulation=3)
        by_slot = {slot.slot: slot.cycles for slot in found.timeline.slots}
        first, last, second, final = (by_slot[slot] for slot in range(4))
        steady = max(first + final, last + second)
        compute = first + max(first, last + second) + steady + max(last + second, final) + final
        cycles = 5 * found.chip.global_sync_cycles + sum(
            found.chip.cycles(2 * WIDTH * 4 / found.chip.link_bandwidth) for _ in range(4)
        )
        update = found.timeline.update
        rest = found.cycles - compute - cycles - update
        assert 0 <= rest < 4 * found.chip.global_sync_cycles

    def test_a_stage_keeps_what_its_backward_pass_needs_later(self):
        found = training(Layers(4, ipus=4).to("meta"), accumulation=8)
        entries = {ipu: {s.entries for s in found.flow.stashes if s.ipu == ipu} for ipu in range(4)}
        assert entries == {0: {7}, 1: {5}, 2: {3}, 3: set()}  # the last forward and the first backward are one stage
        assert [ipu.memory.get("stashes", 0) for ipu in found.ipus] == [n * 2 * WIDTH * 4 for n in (7, 5, 3, 0)]

    def test_inference_has_no_backward_pass(self):
        found = estimate(Layers(ipus=2).to("meta"), poptorch.Options().deviceIterations(5), inputs(10))
        assert [stage.label for stage in found.stages] == ["forward of part 0", "forward of part 1"]
        assert found.bubble > 0

    def test_shards_run_one_after_the_other(self):
        options = poptorch.Options()
        options.setExecutionStrategy(poptorch.ShardedExecution())
        found = estimate(Layers(ipus=2).to("meta"), options, inputs(2))
        assert found.timeline.cycle >= sum(stage.cycles for stage in found.stages)

    def test_phases_come_from_streaming_memory(self):
        class Phased(Layers):
            def forward(self, x):
                with poptorch.Block("first"):
                    y = self.layers[0](x)
                with poptorch.Block("second"):
                    return self.layers[1](y)

        options = poptorch.Options()
        first, second = (poptorch.Phase(poptorch.Stage(name).ipu(0)) for name in ("first", "second"))
        options.setExecutionStrategy(poptorch.SerialPhasedExecution(first, second))
        found = estimate(Phased(2).to("meta"), options, inputs(2))
        assert found.timeline.spent.on("DDR") > 0


class TestMemory:
    def test_state_in_streaming_memory_is_not_on_tiles(self):
        away = poptorch.TensorLocationSettings().useOnChipStorage(False)
        here, there = (training(Layers().to("meta"), 2, optimizer_location=place) for place in (None, away))
        assert here.ipus[0].memory["optimizer state"] > 0
        assert there.ipus[0].memory["optimizer state"] < 100  # single numbers stay
        assert there.timeline.spent.on("DDR") > here.timeline.spent.on("DDR") == 0

    def test_replicas_share_sharded_state(self):
        shared = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        shared.minElementsForReplicatedTensorSharding(2)
        alone, together = (training(Layers().to("meta"), 2, 4, optimizer_location=place) for place in (None, shared))
        assert together.ipus[0].memory["optimizer state"] * 3 < alone.ipus[0].memory["optimizer state"]
        assert alone.timeline.spent.on("link") > 0

    def test_recomputation_keeps_less(self):
        kept, again = (training(Layers(8).to("meta"), recomputation=mode, rows=64) for mode in (0, 1))
        most = "activations and temporaries"
        assert again.ipus[0].memory[most] <= kept.ipus[0].memory[most]
        assert again.cycles > kept.cycles

    def test_tiles_for_input_and_output_do_not_compute(self):
        plain, some = (training(Layers().to("meta"), io_tiles=tiles) for tiles in (None, 64))
        assert len(plain.ipus[0].on_tiles) - len(some.ipus[0].on_tiles) == 64

    def test_accumulators(self):
        assert "accumulators" not in training(Layers().to("meta"), 1).ipus[0].memory
        assert training(Layers().to("meta"), 2).ipus[0].memory["accumulators"] == 4 * (WIDTH * WIDTH + WIDTH) * 4

    def test_what_does_not_fit(self):
        found = training(Layers(8, width=512).to("meta"), 2, rows=64, memory_per_tile=20_000, width=512)
        assert not found.fits
        assert found.ipus[0].tiles_over > 0
        text = str(found)
        assert "IPU 0 is out of memory" in text
        assert "layers." in text
        kinds = ("recompute", "streaming memory", "micro-batches of 32 instead of 64")
        for kind in kinds:
            assert any(kind in line for line in found.suggestions()), (kind, found.suggestions())

    def test_a_split_that_fits(self):
        class Uneven(Layers):
            def __init__(self):
                super().__init__(8, width=512)
                poptorch.BeginBlock(self.layers[7], ipu_id=1)

        model = Uneven().to("meta")
        roomy = training(model, 4, width=512)
        limit = roomy.ipus[0].peak_tile_bytes - 8
        assert roomy.ipus[1].peak_tile_bytes < limit - 1000
        lines = training(model, 4, memory_per_tile=limit, width=512).suggestions()
        assert any("move the split to layers.6" in line for line in lines), lines

    def test_always_live_tensors_are_spread(self):
        found = training(Layers().to("meta"))
        assert found.ipus[0].by_category["weights"].shape == (found.chip.tiles,)
        assert found.ipus[0].by_category["weights"].max() < found.ipus[0].memory["weights"]


class TestWrapped:
    def test_a_wrapped_model_brings_its_own_options(self):
        options = poptorch.Options()
        options.Training.gradientAccumulation(2)
        model = Layers()
        executor = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.1))
        found = estimate(executor, None, torch.ones(4, WIDTH))
        assert found.cycles == training(Layers().to("meta"), 2).cycles
        assert not executor.isCompiled()
        executor(torch.ones(4, WIDTH))
        assert estimate(executor).cycles == found.cycles
        with pytest.raises(poptorch.Error, match="options and an optimizer of its own"):
            estimate(executor, options, torch.ones(4, WIDTH))


class TestBadInput:
    @pytest.mark.parametrize(
        ("keywords", "phrase"),
        [
            ({"arch": "mk9"}, "no known IPU"),
            ({"tiles": 0}, "must be positive"),
            ({"speed": 3}, "no speed"),
            ({"tiles": 32, "io_tiles": 32}, "leave none"),
        ],
    )
    def test_chips(self, keywords, phrase):
        with pytest.raises(poptorch.Error, match=phrase):
            training(Layers().to("meta"), **keywords)

    def test_sizes_that_depend_on_values(self):
        class Chooses(nn.Module):
            def forward(self, x):
                return x[x > 0]

        with pytest.raises(Exception, match=r"(?i)dynamic|depend|shape|value"):
            estimate(Chooses(), None, inputs(2))

    def test_models_that_need_values(self):
        class Asks(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        with pytest.raises(Exception, match=r"(?i)value"):
            estimate(Asks(), None, inputs(2))

    def test_no_model(self):
        with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
            estimate("model")
        with pytest.raises(poptorch.Error, match=r"Expected poptorch\.Options"):
            estimate(nn.ReLU(), {}, inputs(1))
