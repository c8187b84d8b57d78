"""Data sets must be importable in other processes, so their module's folder goes on the path of those too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
