"""``popdist.poptorch.Options``, and plain options under a launcher."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import popdist.poptorch
import poptorch

Launch = Callable[..., None]


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return poptorch.identity_loss(self.layer(x), "mean")


def test_without_a_launcher() -> None:
    for options in (popdist.poptorch.Options(), popdist.poptorch.Options(1), popdist.poptorch.Options(2)):
        assert isinstance(options, poptorch.Options)
        assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
        assert options.replication_factor == 1
        assert not options.exists("ipu_id")


def test_under_a_launcher(launch: Launch) -> None:
    launch(total=8, local=2, ipus=2, instance=3)
    options = popdist.poptorch.Options(ipus_per_replica=2)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (3, 4)
    assert options.replication_factor == 2
    assert popdist.poptorch.Options().outputMode(poptorch.OutputMode.All).toDict()["ipu_id"] == 96 + 3


def test_another_number_of_ipus_than_the_launcher_s(launch: Launch) -> None:
    launch(total=2, local=1, ipus=2, instance=0)
    with pytest.raises(RuntimeError, match=r"asks for 4 IPUs per replica, and the launcher was given 2"):
        popdist.poptorch.Options(ipus_per_replica=4)


@pytest.mark.parametrize("launched", [True, False])
def test_calls_that_the_launcher_decides_about(launched: bool, launch: Launch) -> None:
    if launched:
        launch(total=2, local=2, ipus=1, instance=0)
    options = popdist.poptorch.Options(ipus_per_replica=1)
    calls = {
        "useIpuId": lambda: options.useIpuId(0),
        "replicationFactor": lambda: options.replicationFactor(2),
        "Distributed.disable": lambda: options.Distributed.disable(),
        "Distributed.setEnvVarNames": lambda: options.Distributed.setEnvVarNames("SIZE", "RANK"),
        "Distributed.configureProcessId": lambda: options.Distributed.configureProcessId(0, 2),
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options"):
            call()
        holder, method = (options.Distributed, name.split(".")[1]) if "." in name else (options, name)
        for arguments, keywords in (((), {}), ((1, 2, 3), {}), ((), {"number": 1})):  # whatever they are
            with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options"):
                getattr(holder, method)(*arguments, **keywords)
    assert options.replication_factor == (2 if launched else 1)


def test_everything_else_is_as_in_all_options() -> None:
    options = popdist.poptorch.Options().deviceIterations(3).randomSeed(1)
    options.Training.gradientAccumulation(2)
    options._Popart.set("enableStableNorm", True)
    assert options.device_iterations == 3


@pytest.mark.parametrize("frozen", [True, False])
def test_a_dictionary_leaves_the_options_frozen_or_not(frozen: bool) -> None:
    options = popdist.poptorch.Options(ipus_per_replica=2).outputMode(poptorch.OutputMode.All)
    if frozen:
        options._freeze()
    assert options.toDict()["ipu_id"] == 64
    if frozen:
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.deviceIterations(2)
    else:
        options.deviceIterations(2)
    assert options.toDict()["ipu_id"] == 64


def test_no_device_where_none_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    offline = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All).useOfflineIpuTarget()
    assert "ipu_id" not in offline.toDict()
    model = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All).useIpuModel(True)
    assert "ipu_id" not in model.toDict()
    later = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All)
    assert "ipu_id" in later.toDict()
    assert "ipu_id" not in later.useOfflineIpuTarget().toDict()
    monkeypatch.setenv("POPTORCH_SYSTEM", "none")
    options = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All)
    with pytest.raises(RuntimeError, match="no device to choose from"):
        options.toDict()


def test_copies_keep_the_class(launch: Launch) -> None:
    launch(total=2, local=2, ipus=1, instance=0)
    options = popdist.poptorch.Options()
    options._freeze()
    for made in (copy.deepcopy(options), options.clone()):
        assert type(made) is popdist.poptorch.Options
        assert made.deviceIterations(2).replication_factor == 2
        with pytest.raises(RuntimeError, match=r"Distributed\.disable"):
            made.Distributed.disable()


def test_the_launcher_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("POPDIST_EXECUTABLE_CACHE_PATH", str(tmp_path / "cache"))
    options = popdist.poptorch.Options()
    assert options._Popart.options["cachePath"] == str(tmp_path / "cache")
    options.enableExecutableCaching(str(tmp_path / "explicit"))
    assert options._Popart.options["cachePath"] == str(tmp_path / "explicit")


def test_training_on_the_instance_s_device(launch: Launch) -> None:
    launch(total=2, local=2, ipus=1, instance=0)
    popdist.init()
    torch.manual_seed(0)
    model = WithLoss()
    before = model.layer.weight.detach().clone()
    training = poptorch.trainingModel(model, popdist.poptorch.Options(ipus_per_replica=1))
    training(torch.ones(4, 2))
    assert training.options.ipu_id == 64, "the first pair: two replicas of one IPU"
    assert not torch.equal(model.layer.weight.detach(), before)
    training.destroy()


def test_two_models_without_a_launcher_get_devices_of_their_own() -> None:
    training = poptorch.trainingModel(WithLoss(), popdist.poptorch.Options())
    inference = poptorch.inferenceModel(nn.ReLU(), popdist.poptorch.Options())
    training(torch.ones(4, 2))
    assert inference(torch.tensor([-1.0])).item() == 0.0
    assert training.options.ipu_id != inference.options.ipu_id
    training.destroy()
    inference.destroy()


# --- plain options under a launcher ----------------------------------------------------------------------------


def test_plain_options_are_distributed_without_replicas(launch: Launch) -> None:
    launch(total=8, local=2, ipus=2, instance=3)
    options = poptorch.Options()
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (3, 4)
    assert options.replication_factor == 1
    assert not options.exists("ipu_id")
    loader = poptorch.DataLoader(options, list(range(40)), batch_size=5)
    assert [batch.tolist() for batch in loader] == [list(range(30, 35)), list(range(35, 40))]


def test_a_model_of_one_instance_inside_a_job(launch: Launch) -> None:
    launch(total=2, local=1, ipus=1, instance=0)
    options = poptorch.Options()
    options.Distributed.disable()
    model = poptorch.inferenceModel(nn.ReLU(), options)
    assert popdist.execute_on_instances({0}, model, torch.tensor([-1.0])).item() == 0.0


@pytest.mark.parametrize("arguments", [((), {}), ((1, 2, 3), {}), ((), {"whatever": 1})])
def test_they_are_refused_whatever_their_arguments(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    options = popdist.poptorch.Options()
    named, group = ("useIpuId", "replicationFactor"), ("disable", "setEnvVarNames", "configureProcessId")
    calls = [(name, getattr(options, name)) for name in named]
    calls += [(f"Distributed.{name}", getattr(options.Distributed, name)) for name in group]
    for name, call in calls:
        with pytest.raises(RuntimeError, match=rf"Cannot call `{name}` with popdist\.poptorch\.Options"):
            call(*arguments[0], **arguments[1])
