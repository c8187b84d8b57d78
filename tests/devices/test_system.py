"""The virtual system and the hardware queries."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch.devices.system import SYSTEMS, System, system


def use(monkeypatch, **variables: str) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def test_by_default_a_pod64_of_mk2() -> None:
    assert system() == System("pod64", 64, "mk2", "ipu2", 2, 1472, 624 * 1024)
    assert poptorch.ipuHardwareIsAvailable()
    assert poptorch.ipuHardwareVersion() == 2


@pytest.mark.parametrize(
    ("name", "ipus", "version"),
    [
        ("pod4", 4, 2),
        ("bow-pod16", 16, 2),
        ("pod256", 256, 2),
        ("dss8440", 16, 1),
        ("c2", 2, 1),
        ("c600", 1, 21),
    ],
)
def test_other_systems(name: str, ipus: int, version: int, monkeypatch) -> None:
    use(monkeypatch, POPTORCH_SYSTEM=name)
    assert poptorch.ipuHardwareIsAvailable(ipus)
    assert not poptorch.ipuHardwareIsAvailable(2 * ipus)
    assert poptorch.ipuHardwareVersion() == version


@given(num_ipus=st.integers(-4, 600), name=st.sampled_from(sorted(SYSTEMS)))
def test_devices_come_in_powers_of_two(num_ipus: int, name: str) -> None:
    expected = num_ipus in {2**k for k in range(10)} and num_ipus <= SYSTEMS[name].ipus
    assert SYSTEMS[name].offers(num_ipus) is expected


@pytest.mark.parametrize(
    "variables",
    [{"POPTORCH_SYSTEM": "none"}, {"POPTORCH_IPU_MODEL": "1"}, {"POPTORCH_SMALL_IPU_MODEL": "1"}],
)
def test_without_hardware(variables: dict[str, str], monkeypatch) -> None:
    use(monkeypatch, **variables)
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(AssertionError, match="No IPU hardware available on this system"):
        poptorch.ipuHardwareVersion()


def test_a_model_variable_of_zero_is_off(monkeypatch) -> None:
    use(monkeypatch, POPTORCH_IPU_MODEL="0", POPTORCH_SMALL_IPU_MODEL="0")
    assert poptorch.ipuHardwareIsAvailable()


def test_a_model_variable_that_is_no_number(monkeypatch) -> None:
    use(monkeypatch, POPTORCH_IPU_MODEL="yes")
    with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL"):
        poptorch.ipuHardwareIsAvailable()


@pytest.mark.parametrize(("name", "hint"), [("pod46", "Did you mean 'pod4'"), ("POD16", "Did you mean 'pod16'")])
def test_an_unknown_system_is_named_with_a_hint(name: str, hint: str, monkeypatch) -> None:
    use(monkeypatch, POPTORCH_SYSTEM=name)
    with pytest.raises(poptorch.Error, match=f"POPTORCH_SYSTEM is '{name}'.*{hint}"):
        poptorch.ipuHardwareIsAvailable()


def test_systems_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        system().ipus = 3


def test_mlir_is_supported() -> None:
    assert poptorch.hasMLIRSupportOnPlatform() is True
