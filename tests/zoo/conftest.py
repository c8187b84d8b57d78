"""Makes the zoo importable (``from zoo_all import ARCHITECTURES``) and runs tests that ask for one over all of it.

Other folders reuse the zoo by putting this folder on ``sys.path`` in a ``conftest.py`` of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a parameter ``architecture`` runs once for each."""
    if "architecture" in metafunc.fixturenames:
        from zoo_all import ARCHITECTURES

        metafunc.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
