"""The libraries that an adapter needs: found, or an error that says what to install."""

from __future__ import annotations

from importlib.util import find_spec


def require(extra: str, *modules: str) -> None:
    """Refuse to go on without some modules; ``extra`` is the set of dependencies of this package that brings them.

    >>> require("transformers", "json")
    >>> require("transformers", "no_such_library")
    Traceback (most recent call last):
    ImportError: poptorch.integrations.transformers needs no_such_library. Install it with: pip install ...
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ImportError(
            f"poptorch.integrations.{extra} needs {' and '.join(missing)}. Install it with: "
            f'pip install "poptorch[{extra}]"'
        )
