"""Where users meet the IPU Model: the shell, compilation, cycle counts, advice."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn

import poptorch
from poptorch.cli import main
from poptorch.ipu_model import advice, advise

SCRIPT = """
import torch, poptorch

def model():
    return torch.nn.Linear(64, 64), poptorch.Options(), torch.empty(4, 64)

def training():
    class WithLoss(torch.nn.Linear):
        def forward(self, x):
            return poptorch.identity_loss(super().forward(x), "mean")

    made = WithLoss(64, 64)
    optimizer = poptorch.optim.SGD(made.parameters(), lr=0.1)
    return {"model": made, "inputs": torch.empty(4, 64), "optimizer": optimizer}

def nothing():
    return 3
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


class TestShell:
    def test_a_page(self, script, capsys):
        assert main(["estimate", f"{script}:model", "--meta"]) == 0
        assert "inference on 1 mk2 IPU" in capsys.readouterr().out

    def test_figures_for_tools(self, script, capsys):
        assert main(["estimate", f"{script}:training", "--json", "--arch", "mk2", "--set", "clock=1e9"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["architecture"] == "mk2"
        assert found["seconds"] == pytest.approx(found["cycles"] / 1e9, rel=1e-3)

    def test_the_status_says_whether_it_fits(self, script, capsys):
        assert main(["estimate", f"{script}:model", "--set", "memory_per_tile=2000"]) == 1
        assert "out of memory" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "phrase"),
        [
            (["{}:nothing"], "must return"),
            (["{}:missing"], "has no function missing"),
            (["{}"], "names no function"),
            (["elsewhere.py:model"], "There is no file"),
            (["{}:model", "--arch", "mk7"], "no known IPU"),
            (["{}:model", "--set", "clock"], "expected a knob"),
        ],
    )
    def test_bad_input(self, script, capsys, arguments, phrase):
        name = str(script) if "names no" not in phrase else "script"
        assert main(["estimate", *(a.format(name) for a in arguments)]) == 2
        assert phrase in capsys.readouterr().err


class TestCycleCounts:
    def test_virtual_hardware(self, caplog):
        executor = poptorch.inferenceModel(nn.Linear(64, 64), poptorch.Options().logCycleCount(True))
        executor(torch.ones(2, 64))
        count = executor.cycleCount()
        assert count == poptorch.ipu_model.estimate(executor, arch="mk2").cycles > 0

    def test_the_system_decides(self, monkeypatch):
        def count():
            executor = poptorch.inferenceModel(nn.Linear(64, 64), poptorch.Options().logCycleCount(True))
            executor(torch.ones(2, 64))
            return executor.cycleCount(), executor

        mk2, _ = count()
        monkeypatch.setenv("POPTORCH_SYSTEM", "bow-pod16")
        bow, executor = count()
        assert bow == poptorch.ipu_model.estimate(executor, arch="bow").cycles
        assert bow >= mk2  # the same cycles on chip, more of them while the host is waited for


class TestVerdict:
    def wrapped(self):
        return poptorch.inferenceModel(nn.Linear(1000, 2000))

    def test_a_warning(self, monkeypatch, caplog):
        monkeypatch.setenv("POPTORCH_SMALL_IPU_MODEL", "1")
        with caplog.at_level(logging.WARNING):
            assert self.wrapped()(torch.ones(2, 1000)).shape == (2, 2000)
        assert "IPU 0 is out of memory" in caplog.text
        assert "weight" in caplog.text

    def test_an_error_on_request(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_SMALL_IPU_MODEL", "1")
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"debug.allowOutOfMemory":"false"}')
        executor = self.wrapped()
        with pytest.raises(poptorch.Error, match=r"does not fit[\s\S]*IPU 0 is out of memory"):
            executor(torch.ones(2, 1000))
        assert not executor.isCompiled()

    def test_what_fits_is_not_mentioned(self, caplog):
        executor = poptorch.inferenceModel(nn.Linear(8, 8), poptorch.Options().useIpuModel(True))
        with caplog.at_level(logging.WARNING):
            executor(torch.ones(2, 8))
        assert "memory" not in caplog.text


class TestAdvice:
    def layers(self, width=256):
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to("meta")

    def test_the_best_first(self):
        model = self.layers()
        found = advise(model, None, torch.empty(32, 256, device="meta"), ipus=2, tries=8)
        speeds = [candidate.throughput for candidate in found if candidate.fits]
        assert speeds == sorted(speeds, reverse=True)
        for candidate in found:
            assert candidate.configuration.stages * candidate.configuration.replicas == 2
            assert candidate.estimate.samples == 32
            assert candidate.headroom > 0
        assert "samples/s" in str(found)
        assert not any(module._forward_pre_hooks for module in model.modules())

    def test_the_code_gives_what_was_predicted(self):
        model = self.layers()
        inputs = torch.empty(32, 256, device="meta")
        best = advise(model, None, inputs, ipus=2, tries=4).best
        names = {"poptorch": poptorch, "model": model}
        exec(best.code, names)
        assert poptorch.ipu_model.estimate(model, names["options"], inputs).cycles == best.estimate.cycles

    def test_a_model_is_captured_once_for_each_size_of_micro_batches(self, monkeypatch):
        captured = []
        original = advice.rewrite
        monkeypatch.setattr(advice, "rewrite", lambda request: captured.append(1) or original(request))
        found = advise(self.layers(), None, torch.empty(16, 256, device="meta"), ipus=2, tries=12)
        assert len(captured) <= 5 < found.tried

    def test_it_is_as_good_as_trying_everything(self):
        model, inputs = self.layers(), torch.empty(8, 256, device="meta")
        best = advise(model, None, inputs, ipus=2).best
        everything = []
        for start in range(4):
            for rows in (1, 2, 4, 8):
                for share in (0.1, 0.6):
                    stages = 2 if start else 1
                    options = poptorch.Options().deviceIterations(8 // rows // (1 if start else 2) or 1)
                    if 8 // rows < 2:
                        continue
                    options.replicationFactor(1 if start else 2)
                    options.setAvailableMemoryProportion({f"IPU{ipu}": share for ipu in range(stages)})
                    if start:
                        poptorch.BeginBlock(model[start], ipu_id=1)
                    everything.append(poptorch.ipu_model.estimate(model, options, inputs).throughput)
                    poptorch.removeBlocks(model)
        assert best.throughput >= 0.95 * max(everything)

    def test_it_says_what_limits(self):
        found = advise(self.layers(), None, torch.empty(16, 256, device="meta"), ipus=2, tries=6)
        assert f"limited by {found.best.estimate.bound_by}" in str(found)

    def test_annotations_are_left_alone(self):
        model = self.layers()
        poptorch.BeginBlock(model[3], ipu_id=1)
        advise(model, None, torch.empty(8, 256, device="meta"), ipus=2, tries=2)
        assert [len(layer._forward_pre_hooks) for layer in model] == [0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("keywords", "phrase"),
        [({"ipus": 0}, "ipus must be"), ({"ipus": 2, "tries": 0}, "least 1"), ({"ipus": 1, "arch": "x"}, "no known")],
    )
    def test_bad_input(self, keywords, phrase):
        with pytest.raises(poptorch.Error, match=phrase):
            advise(self.layers(), None, torch.empty(8, 256, device="meta"), **keywords)

    def test_no_way(self):
        with pytest.raises(poptorch.Error, match="no way to run"):
            advise(self.layers(), None, torch.empty(3, 256, device="meta"), ipus=4, tries=2)
