"""``TEST_SAMPLE=12`` runs one test in twelve: a cut through all rooms, the same one each time (``make check``)."""

from __future__ import annotations

import os
import zlib

import pytest

_one_in = int(os.environ.pop("TEST_SAMPLE", "1"))


def keep_some(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but a sample, chosen by their names: other tests come and go without changing it."""
    if _one_in == 1:
        return
    chosen = [item for item in items if zlib.crc32(item.nodeid.encode()) % _one_in == 0]
    config.hook.pytest_deselected(items=[item for item in items if zlib.crc32(item.nodeid.encode()) % _one_in != 0])
    items[:] = chosen
