"""Looking inside a compiled model: names, anchors, compile time, counters, cycles (spec: executor §4, §13, §15)."""

from __future__ import annotations

import datetime
import io
import re
import sys

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch import OutputMode
from poptorch.compiler.pipeline import DEVICE_PASSES
from poptorch.host import levels


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, target):
        y = self.fc2(torch.relu(self.fc1(x)))
        return y, nn.functional.mse_loss(y, target)


def data(blocks=1):
    generator = torch.Generator().manual_seed(blocks)
    return torch.randn(2 * blocks, 3, generator=generator), torch.randn(2 * blocks, 2, generator=generator)


def train(options, momentum=0.0):
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.1)
    return poptorch.trainingModel(model, options, optimizer)


class TestNames:
    def test_only_after_compile(self):
        executor = train(poptorch.Options())
        with pytest.raises(AssertionError, match="Model must be compiled before calling getTensorNames"):
            executor.getTensorNames()
        executor.compile(*data())
        names = executor.getTensorNames()
        assert isinstance(names, list)
        assert all(isinstance(name, str) for name in names)
        for start in ("Gradient___", "UpdatedVar__", "scaledLearningRate", "weightDecayScaleFactor"):
            assert any(name.startswith(start) for name in names), start
        assert {"input", "loss", "Gradient___fc2.bias", "UpdatedVar___fc2.bias", "UpdatedVar___model.fc2.bias"} <= set(
            names
        )
        assert any("fc1/" in name or "fc1." in name for name in names)
        executor.destroy()
        with pytest.raises(AssertionError, match="Model must be compiled"):
            executor.getTensorNames()

    def test_inference(self):
        executor = poptorch.inferenceModel(Two())
        executor.compile(*data())
        names = executor.getTensorNames()
        assert "fc1.weight" in names
        assert not any(name.startswith(("Gradient___", "UpdatedVar__")) for name in names)

    def test_name_scopes_can_be_left_out(self):
        def scoped(options):
            executor = poptorch.inferenceModel(Two(), options)
            executor.compile(*data())
            return [name for name in executor.getTensorNames() if name.startswith("fc1/")]

        assert scoped(poptorch.Options())
        assert not scoped(poptorch.Options().disableModuleNamescope())

    def test_every_name_can_be_anchored(self):
        executor = poptorch.inferenceModel(Two())
        executor.compile(*data())
        names = executor.getTensorNames()
        options = poptorch.Options()
        for index, name in enumerate(names):
            options.anchorTensor(f"anchor {index}", name)
        again = poptorch.inferenceModel(Two(), options)
        again(*data())
        for index in range(len(names)):
            assert isinstance(again.getAnchoredTensor(f"anchor {index}"), torch.Tensor)


class TestAnchors:
    @pytest.mark.parametrize("prefix", ["", "model."])
    def test_gradients_and_updated_weights(self, prefix):
        options = poptorch.Options()
        options.anchorTensor("grad", f"Gradient___{prefix}fc2.bias")
        options.anchorTensor("updated", f"UpdatedVar___{prefix}fc2.bias")
        executor = train(options)
        with pytest.raises(AssertionError, match="No tensor with name grad found"):
            executor.getAnchoredTensor("grad")
        reference = Two()
        seen = []
        for _ in range(2):
            outputs = executor(*data())
            assert len(outputs) == 2
            gradient, updated = executor.getAnchoredTensor("grad"), executor.getAnchoredTensor("updated")
            assert gradient.shape == updated.shape == (2,)
            assert_close_sums(updated, executor.model.fc2.bias.data.clone(), terms=1)
            seen.append((gradient, gradient.clone(), updated, updated.clone()))
        reference(*data())[1].backward()
        assert_close_sums(seen[0][0], reference.fc2.bias.grad, terms=16, steps=2)
        for first, kept, second, also_kept in seen:
            assert torch.equal(first, kept)
            assert torch.equal(second, also_kept)
        assert not torch.equal(seen[0][0], seen[1][0])
        with pytest.raises(AssertionError, match="No tensor with name other found"):
            executor.getAnchoredTensor("other")

    @pytest.mark.parametrize(
        ("mode", "period", "blocks", "shown"),
        [
            (None, 1, 1, "FINAL/1"),
            (OutputMode.All, 3, 8, "ALL/1"),
            (OutputMode.EveryN, 2, 4, "EVERYN/2"),
            (OutputMode.Final, 4, 1, "FINAL/1"),
            (OutputMode.Sum, 1, 1, "Sum/1"),
        ],
    )
    def test_modes(self, mode, period, blocks, shown, log):
        options = poptorch.Options().deviceIterations(4)
        options.Training.gradientAccumulation(2)
        options.anchorTensor("a", "input", mode, period)
        executor = train(options)
        x, target = data(8)
        executor(x, target)
        assert f"input {shown}" in log.text
        value = executor.getAnchoredTensor("a")
        assert value.shape == (2 * blocks, 3)
        expected = {
            8: x,
            4: torch.cat([x[4:8], x[12:16]]),
            1: x.view(8, 2, 3).sum(0) if mode is OutputMode.Sum else x[-2:],
        }[blocks]
        assert_close_sums(value, expected, terms=8)

    def test_optimizer_state_and_numbers(self):
        options = poptorch.Options().deviceIterations(2)
        options.Training.gradientAccumulation(2)
        options.anchorTensor("m", "Accl1___fc2.bias", OutputMode.All)
        options.anchorTensor("v", "Accl2___model.fc1.weight")
        options.anchorTensor("step", "Step___fc2.bias", OutputMode.All)
        options.anchorTensor("lr", "learningRate")
        options.anchorTensor("own lr", "learningRate___specific___fc1.bias")
        model = Two()
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.125)
        executor = poptorch.trainingModel(model, options, optimizer)
        executor(*data(4))
        state = optimizer.state_dict()["ipu_state"]
        moments = executor.getAnchoredTensor("m")
        assert moments.shape == (4 * 2,)
        assert torch.equal(moments.view(4, 2)[-1], state["Accl1___fc2.bias"])
        assert torch.equal(moments.view(4, 2)[1], moments.view(4, 2)[2])  # between two updates nothing changes
        assert not torch.equal(moments.view(4, 2)[0], moments.view(4, 2)[1])
        assert torch.equal(executor.getAnchoredTensor("v"), state["Accl2___fc1.weight"])
        assert executor.getAnchoredTensor("step").tolist() == [0, 1, 1, 2]
        assert executor.getAnchoredTensor("lr").item() == executor.getAnchoredTensor("own lr").item() == 0.125

    def test_every_name_can_be_anchored(self):
        first = train(poptorch.Options(), momentum=0.9)
        first.compile(*data())
        names = first.getTensorNames()
        assert len(names) == len(set(names))
        assert any(name.startswith("Accl") for name in names)
        options = poptorch.Options()
        for number, name in enumerate(names):
            options.anchorTensor(str(number), name)
        executor = train(options, momentum=0.9)
        executor(*data())
        for number, name in enumerate(names):
            value = executor.getAnchoredTensor(str(number))
            if "fc2.bias" in name and "specific" not in name:
                assert value.shape == (2,), name

    def test_state_that_the_optimizer_does_not_keep(self):
        options = poptorch.Options()
        options.anchorTensor("state", "Accl2___fc2.bias")
        with pytest.raises(poptorch.Error, match=r"Accl2___fc2\.bias.*keeps nothing of this name.*Accl1?___fc2\.bias"):
            train(options, momentum=0.9)(*data())

    def test_unknown_names_are_refused_with_a_hint(self):
        options = poptorch.Options()
        options.anchorTensor("grad", "Gradient___fc2.bais")
        with pytest.raises(poptorch.Error, match=r"Gradient___fc2\.bais.*Did you mean.*Gradient___fc2\.bias"):
            train(options)(*data())
        options = poptorch.Options()
        options.anchorTensor("grad", "UpdatedVar___nothing")
        with pytest.raises(poptorch.Error, match="UpdatedVar___nothing"):
            train(options)(*data())
        assert train(poptorch.Options())(*data())[0].shape == (2, 2)

    @pytest.mark.parametrize(("period", "entries"), [(3, 1), (4, 1), (5, 0), (100, 0)])
    @pytest.mark.parametrize("name", ["input", "loss", "UpdatedVar___fc2.bias"])
    def test_a_period_that_does_not_divide_the_iterations(self, period, entries, name):
        options = poptorch.Options().deviceIterations(4)
        options.anchorTensor("a", name, OutputMode.EveryN, period)
        options.anchorTensor("all", name, OutputMode.All)
        executor = train(options)
        x, target = data(4)
        executor(x, target)
        some, every = (torch.atleast_1d(executor.getAnchoredTensor(name)) for name in ("a", "all"))
        rows = len(every) // 4
        assert len(some) == entries * rows
        torch.testing.assert_close(some, every[(period - 1) * rows : period * rows])


class TestCompilationTime:
    def test_life(self):
        executor = poptorch.inferenceModel(nn.ReLU())
        with pytest.raises(poptorch.Error, match="Please compile the model before obtaining compilation time"):
            executor.compilationTime()
        executor.compile(torch.ones(1))
        assert isinstance(executor.compilationTime(), datetime.timedelta)
        assert executor.compilationTime() > datetime.timedelta(0)
        executor.destroy()
        with pytest.raises(poptorch.Error, match="Please compile the model"):
            executor.compilationTime()

    def test_needs_the_progress_bar(self):
        executor = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().showCompilationProgressBar(False))
        executor.compile(torch.ones(1))
        with pytest.raises(
            poptorch.Error, match="Please set showCompilationProgressBar option to obtain compilation time"
        ):
            executor.compilationTime()


class Terminal(io.StringIO):
    """What a terminal would show."""

    def isatty(self):
        return True


def stages(terminal):
    """What the progress bar named, each once."""
    found = re.findall(r"<[\d:?]+, ([^\]]+)\]", terminal.getvalue())
    return list(dict.fromkeys(found))


class TestProgressBar:
    def test_shown_by_default_and_closed_also_after_a_failure(self, monkeypatch):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        poptorch.inferenceModel(nn.ReLU())(torch.ones(1))
        shown = terminal.getvalue()
        assert "Graph compilation: 100%" in shown
        assert "it/s" not in shown

        class Bad(nn.Module):
            def forward(self, x):
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            poptorch.inferenceModel(Bad())(torch.ones(1))
        assert terminal.getvalue().endswith("\n")

    def test_the_stages_of_a_native_build(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_CODEGEN", "native")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        options = poptorch.Options()
        options.Training.gradientAccumulation(2)
        model = Two()
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        executor(*data(2))
        shown = stages(terminal)
        passes = [step.name for step in DEVICE_PASSES]
        native = ["native 1/2: micro-batch", "native 2/2: update", "C++"]
        expected = ["capture", "functional form", *passes, "update", "code", *native, "loading"]
        assert [s for s in shown if not s.startswith("C++ ")] == expected
        assert not executor.session.store.compiled or "C++ 0/" in terminal.getvalue()

    def test_the_change_to_native_code_in_the_middle_of_a_run(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_CODEGEN", "auto")
        monkeypatch.setattr(levels, "SWITCH_AFTER_SECONDS", 0.0)
        executor = poptorch.inferenceModel(nn.Linear(3, 3))
        executor(torch.ones(1, 3))
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        executor(torch.ones(1, 3))
        assert [s for s in stages(terminal) if not s.startswith("C++ ")] == ["native 1/1: micro-batch", "C++"]
        assert "Graph compilation: 100%" in terminal.getvalue()
        assert terminal.getvalue().endswith("\n")
        before = terminal.getvalue()
        executor(torch.ones(1, 3))
        assert terminal.getvalue() == before

    def test_hidden(self, monkeypatch):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        options = poptorch.Options().showCompilationProgressBar(False)
        poptorch.inferenceModel(nn.ReLU(), options)(torch.ones(1))
        assert "Graph compilation" not in terminal.getvalue()

    def test_monotonous_up_to_the_total(self):
        seen = []
        options = poptorch.Options()
        executor = poptorch.inferenceModel(nn.ReLU(), options)
        original = executor.options.toDict

        def to_dict():
            settings = original()
            settings["compilation_progress_bar_fn"] = lambda done, total: seen.append((done, total))
            return settings

        object.__setattr__(executor.options, "toDict", to_dict)
        executor(torch.ones(1))
        assert seen
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == seen[-1][1]
        assert sum(done == total for done, total in seen) == 1


class TestCycles:
    def test_order_of_the_checks(self):
        executor = poptorch.inferenceModel(nn.ReLU())
        with pytest.raises(
            poptorch.Error, match=r"Cycle count logging is disabled. Please set option logCycleCount to True"
        ):
            executor.cycleCount()
        executor(torch.ones(1))
        with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
            executor.cycleCount()
        counting = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().logCycleCount(True))
        phrase = "Please run the model at least once before obtaining cycle count"
        with pytest.raises(poptorch.Error, match=phrase):
            counting.cycleCount()
        counting.compile(torch.ones(1))
        with pytest.raises(poptorch.Error, match=phrase):
            counting.cycleCount()


def test_the_program_can_be_read():
    executor = train(poptorch.Options())
    executor.compile(*data())
    listing = str(executor.program)
    for part in (
        "program (training)",
        "parameter 'fc1.weight'",
        "input 'x'",
        "fc2",
        "[ipu0 stage0 fwd]",
        "bwd",
        "(loss)",
    ):
        assert part in listing
    assert "test_inspection.py" in listing
