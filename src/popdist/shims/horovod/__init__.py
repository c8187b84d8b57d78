"""A stand-in for Horovod in jobs of PopRun: see :mod:`popdist.horovod`. It steps back for an installed Horovod."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

__version__ = "0.0+popdist"


def _real() -> importlib.machinery.ModuleSpec | None:
    """An installed Horovod, anywhere else on the path."""
    here = Path(__file__).resolve().parent.parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    return importlib.machinery.PathFinder.find_spec("horovod", others)


if __name__ == "horovod":
    _spec = _real()
    if _spec is not None and _spec.loader is not None:
        _module = importlib.util.module_from_spec(_spec)
        sys.modules["horovod"] = _module
        _spec.loader.exec_module(_module)
