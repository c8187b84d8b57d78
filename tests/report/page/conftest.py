"""Makes the helpers of this folder importable by its tests; one browser for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

if TYPE_CHECKING:
    from selenium import webdriver


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    """A headless Chromium; tests are left out where there is none, unless ``REQUIRE_BROWSER`` is set."""
    import page_view

    missing = page_view.missing()
    if missing:
        assert not os.environ.get("REQUIRE_BROWSER"), f"there is no {missing}, and .ci/run says that there must be one"
        pytest.skip(f"needs {missing} of the system")
    with page_view.chromium() as driver:
        yield driver
