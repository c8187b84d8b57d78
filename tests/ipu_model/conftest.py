"""Makes helpers beside the tests, the zoo and the tables of operations importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "zoo", HERE.parent / "torch_ops"):
    sys.path.insert(0, str(folder))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a parameter ``architecture`` runs once for each of the zoo."""
    if "architecture" in metafunc.fixturenames:
        from zoo_all import ARCHITECTURES

        metafunc.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
