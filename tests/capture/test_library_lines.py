"""A decision of a library about values of a tensor: the warning has the library's line, and the user's."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch

LIBRARY = """
def halved_if_large(x):
    if x.max() > 3:
        return x / 2
    return x


def large_ones(x):
    return x[x > 3]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A module that is excluded as torch's own companions are: its folder begins with their name."""
    folder = tmp_path / "site-packages" / "torch_of_others"
    folder.mkdir(parents=True)
    (folder / "deciding_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("deciding_library")
    sys.modules.pop("deciding_library")


def warned(model: nn.Module) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        poptorch.inferenceModel(model)(torch.ones(2))
    return [str(warning.message) for warning in seen if "frozen into the program" in str(warning.message)]


def test_both_lines_are_named(library) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return library.halved_if_large(x)

    line = Model.forward.__code__.co_firstlineno + 1
    (message,) = warned(Model())
    assert f"torch_of_others/deciding_library.py:3, which is called from {__file__}:{line}:" in message


def test_shapes_that_depend_on_values_name_both_lines(library) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return library.large_ones(x)

    line = Model.forward.__code__.co_firstlineno + 1
    with pytest.raises(poptorch.Error, match="would produce dynamic output shapes") as caught:
        poptorch.inferenceModel(Model())(torch.ones(2))
    assert f"torch_of_others/deciding_library.py:9, which is called from {__file__}:{line}" in str(caught.value)


def test_the_user_s_own_line_alone() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 2 if x.max() > 3 else x

    line = Model.forward.__code__.co_firstlineno + 1
    (message,) = warned(Model())
    assert f"used by Python at {__file__}:{line}: it is frozen" in message


INSTALLED = """
def doubled_if_small(x):
    return x * 2 if x.max() < 3 else x
"""


def test_an_installed_library_is_named_with_the_user_s_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every library is left out of source locations, as torch's companions are."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_library.py").write_text(INSTALLED)
    monkeypatch.setattr("poptorch.capture.locations._INSTALLED", (str(folder),))
    monkeypatch.syspath_prepend(folder)
    installed = importlib.import_module("installed_library")

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return installed.doubled_if_small(x)

    line = Model.forward.__code__.co_firstlineno + 1
    (message,) = warned(Model())
    assert f"installed_library.py:3, which is called from {__file__}:{line}:" in message
