"""The objects of a report have the names of Poplar's own library, and agree with each other and with the estimate."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

import poptorch
from poptorch.report import IPU, Program, ProgramVisitor, openReport


@pytest.fixture(scope="module")
def report(written):
    return openReport(written[0] / "profile.pop")


def test_it_is_a_public_name(folder):
    assert str(poptorch.report.openReport(folder, folder / "debug.cbor")).startswith("Target:")


def test_target_and_graph(report):
    compilation = report.compilation
    assert compilation.target.architecture is IPU.Architecture.Ipu2
    assert (compilation.target.numTiles, compilation.target.tilesPerIpu) == (2944, 1472)
    assert compilation.target.totalMemory == 2 * 1472 * 624 * 1024
    executed = [p for p in compilation.programs if p.type == Program.Type.OnTileExecute]
    assert compilation.graph.numComputeSets == len(executed)


class TestTiles:
    def test_the_fullest_tile_is_that_of_the_estimate(self, report, estimate):
        for place, ipu in enumerate(estimate.ipus):
            memory = report.compilation.tiles[place * 1472 + ipu.peak_tile].memory
            assert abs(memory.total.includingGaps - ipu.peak_tile_bytes) <= 1

    def test_categories_add_up(self, report):
        memory = report.compilation.tiles[3].memory
        parts = [getattr(memory.category, name).total for name in memory.category]
        assert abs(sum(parts) - memory.total.excludingGaps) <= len(parts)
        assert memory.alwaysLiveBytes + memory.notAlwaysLiveBytes == memory.total.excludingGaps
        assert not memory.category.copyDescriptor.modelled
        with pytest.raises(AttributeError, match="vertexCode"):
            memory.category.nonsense  # noqa: B018

    def test_the_code_of_vertices_is_the_vertex_code(self, report):
        for tile in (0, 5, 1472, 2943):
            memory = report.compilation.tiles[tile].memory
            assert sum(vertex.codeBytes for vertex in memory.vertices) == memory.category.vertexCode.total

    def test_always_live_variables_are_the_weights_of_the_ipu(self, report):
        names = {
            variable.name
            for tile in range(1472, 2944)
            for variable in report.compilation.alwaysLiveVariablesForTile(tile)
        }
        assert {"second.weight", "second.bias"} <= names
        assert "first.weight" not in names


class TestPrograms:
    def test_the_first_program_holds_all(self, report):
        class Counting(ProgramVisitor):
            def __init__(self):
                self.computed = self.copied = 0

            def visitOnTileExecute(self, program):
                self.computed += 1

            def visitStreamCopyMid(self, program):
                self.copied += 1

        visitor = Counting()
        report.compilation.programs[0].accept(visitor)
        assert visitor.computed == report.compilation.graph.numComputeSets
        assert visitor.copied > 0

    def test_cycles_by_tile_add_up_to_those_of_all_tiles(self, report):
        programs = report.compilation.programs
        table = report.profile.tables["programs"]
        program = max(programs, key=lambda p: table["total_cycles"][p.index])
        by_tile = program.estimatedCyclesByTile
        assert len(by_tile) == 2944
        assert sum(by_tile) == pytest.approx(table["total_cycles"][program.index])
        assert max(by_tile) == table["tile_cycles"][program.index]

    def test_vertices_are_counted_by_tile(self, report):
        (program, *_) = [p for p in report.compilation.programs if p.type.name == "OnTileExecute" and p.ipu == 1]
        for vertex in program.computeset.vertices:
            counts = vertex.countByTile
            assert sum(counts) == vertex.count
            assert not any(counts[:1472])
        assert sum(program.codeBytesByTile) > 0
        assert sum(program.controlCodeByTile) > 0

    def test_loops_have_their_counts(self, report):
        loops = {
            p.name: p.repeatCount for p in report.compilation.programs if p.type.value == "Repeat" and p.ipu is None
        }
        assert loops == {"device iterations": 1, "micro-batches": 4}

    def test_operations_know_their_programs_and_their_line(self, report):
        (operation, *_) = [o for o in report.compilation.operations if o.layer == "first"]
        assert all(program.operation is operation for program in operation.programs())
        context = json.loads(operation.debugContext.json)
        assert context["location"].rpartition(":")[0].endswith("conftest.py")
        assert operation.firstStepIndex == operation.lastStepIndex == operation.livenessStep.index
        assert operation.livenessStep.program is operation.programs()[0]


class TestLiveness:
    def test_the_curve_is_that_of_the_estimate(self, report, estimate):
        steps = report.compilation.livenessProgramSteps
        moments = [moment for ipu in estimate.ipus for moment in ipu.liveness.moments]
        assert [step.name for step in steps] == [moment.name for moment in moments]
        assert [step.notAlwaysLiveMemoryForIpu() for step in steps] == [round(moment.bytes) for moment in moments]

    def test_tiles_add_up_to_their_ipu(self, report):
        step = report.compilation.livenessProgramSteps[-1]
        on_tiles = sum(step.notAlwaysLiveMemoryForTile(tile) for tile in range(1472, 2944))
        assert abs(on_tiles - step.notAlwaysLiveMemoryForIpu(1)) <= 1472
        assert step.notAlwaysLiveMemoryForTile(0) == step.notAlwaysLiveMemoryForIpu(0) == 0

    def test_variables_live_in_the_steps_of_their_class(self, report):
        for variable in report.compilation.loweredVariables.allBriefVars:
            steps = variable.equivalenceClass.steps
            if variable.alwaysLive:
                assert {step.ipu for step in steps} == {variable.ipu}
            else:
                assert all(variable.id in {v.id for v in step.notAlwaysLiveVariables} for step in steps)

    def test_a_report_without_variables_says_why(self, tmp_path, monkeypatch):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.outputLoweredVars":"false"}')
        executor = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().enableProfiling(str(tmp_path)))
        executor.compile(torch.ones(2))
        found = openReport(tmp_path / "inference")
        assert len(found.compilation.livenessProgramSteps) == 1
        with pytest.raises(poptorch.Error, match="outputLoweredVars"):
            found.compilation.loweredVariables.forTile(0)


class TestExecution:
    def test_runs_have_names_steps_and_measured_times(self, report):
        runs = report.execution.runs
        assert [run.name for run in runs] == ["call 1", "call 2"]
        assert all(run.seconds > 0 for run in runs)
        assert len(report.execution.steps) == 2 * len(runs[0].steps)
        assert {block.name for block in runs[1].blocks} >= {"forward", "backward", "update"}

    def test_steps_follow_each_other(self, report):
        steps = report.execution.runs[0].steps
        for step, following in itertools.pairwise(steps):
            assert step.end == following.start
        step = next(s for s in steps if s.program.type == Program.Type.OnTileExecute and s.program.ipu == 1)
        idle, busy = (ipu.activeCycles for ipu in step.ipus)
        assert busy.cyclesTo.max - busy.cyclesFrom.min == pytest.approx(step.program.cycles)
        assert idle.cyclesTo.max == idle.cyclesFrom.min

    def test_the_steps_of_an_operation_take_its_cycles(self, report, estimate):
        taken: dict[str, float] = {}
        for step in report.execution.runs[0].steps:
            if step.program.operation is not None and step.program.operation.stage == "forward of part 0":
                name = step.program.operation.name
                taken[name] = taken.get(name, 0.0) + step.end - step.start
        expected = {r.name: r.cycles.total for r in estimate.stages[0].operations if r.cycles.total}
        assert taken == pytest.approx(expected)
