"""Connection files of a partition, as programs of 2020 choose them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import poptorch

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a connection file with as many IPUs as are wanted into the folder of the user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IPUOF_CONFIG_PATH", "")  # so that it is as before after the test
    (tmp_path / ".ipuof.conf.d").mkdir()

    def file(name: str, gcd: int | str | None, ipus: int = 2) -> Path:
        attributes = {"Partition": name.partition("_")[0]}
        if gcd is not None:
            attributes |= {"GCD Id": str(gcd), "Number of GCDs": "2"}
        path = tmp_path / ".ipuof.conf.d" / f"{name}.conf"
        path.write_text(json.dumps({"devices": [{}] * ipus, "attributes": attributes}))
        return path

    return file


def options_of(process: int, processes: int) -> poptorch.Options:
    options = poptorch.Options()
    options.Distributed.configureProcessId(process, processes)
    return options


def test_each_process_has_its_own_file(write: Write) -> None:
    files = [write("p_gcd0_ipuof", 0), write("p_gcd1_ipuof", 1)]
    write("q_ipuof", None)
    for process in range(2):
        distributed = options_of(process, 2).Distributed
        assert distributed.IPUoFConfigFiles("~/.ipuof.conf.d/p_*") is distributed
        assert distributed.getGcdConfigFile() == str(files[process])
    distributed = options_of(2, 3).Distributed.IPUoFConfigFiles([str(file) for file in files])
    assert distributed.getGcdConfigFile() is None


@pytest.mark.parametrize("gcd", [None, ""])
def test_a_file_without_a_part_is_that_of_process_0(write: Write, gcd: str | None) -> None:
    file = write("q_ipuof", gcd)
    assert poptorch.Options().Distributed.getGcdConfigFile() == str(file)
    assert options_of(1, 2).Distributed.getGcdConfigFile() is None


def test_without_files(write: Write) -> None:
    assert poptorch.Options().Distributed.getGcdConfigFile() is None


def test_two_files_for_one_part_are_refused(write: Write) -> None:
    write("p_gcd0_ipuof", 0)
    write("q_ipuof", None)
    with pytest.raises(AssertionError, match="Multiple config files are registered to handle GCD 0"):
        poptorch.Options().Distributed.IPUoFConfigFiles("~/.ipuof.conf.d/*")


def test_compiling_uses_the_part_of_the_file(write: Write) -> None:
    write("p_gcd0_ipuof", 0, ipus=4)
    chosen = write("q_gcd0_ipuof", 0, ipus=1)
    options = poptorch.Options()
    options.Distributed.IPUoFConfigFiles(str(chosen))
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.ones(1, 2))
    assert os.environ["IPUOF_CONFIG_PATH"] == str(chosen)
    assert poptorch.ipuHardwareIsAvailable(1)
    assert not poptorch.ipuHardwareIsAvailable(2)


def test_a_process_that_the_options_number_uses_its_part_of_the_only_partition(write: Write) -> None:
    files = [write(f"p_gcd{gcd}_ipuof", gcd, ipus=gcd + 1) for gcd in range(2)]
    poptorch.inferenceModel(torch.nn.Linear(2, 2), options_of(1, 2))(torch.ones(1, 2))
    assert os.environ["IPUOF_CONFIG_PATH"] == str(files[1])
    assert poptorch.ipuHardwareIsAvailable(2)


def test_a_process_without_a_part_does_not_compile(write: Write) -> None:
    file = write("p_gcd0_ipuof", 0)
    options = options_of(1, 2)
    options.Distributed.IPUoFConfigFiles(str(file))
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    with pytest.raises(AssertionError, match="No IPUoF configuration file found for processId 1"):
        model(torch.ones(1, 2))


def test_frozen_options_keep_their_files(write: Write) -> None:
    options = poptorch.Options()
    poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.Distributed.IPUoFConfigFiles("*.conf")


def test_older_names_of_the_numbers() -> None:
    distributed = options_of(1, 4).Distributed
    assert (distributed.hostId, distributed.numHosts) == (1, 4)
