"""Which frames of a stack are the user's: those of no package between the user's line and ours.

A line typed at a prompt, in a notebook or after ``python -c`` is the user's as much as one in a file.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import warnings
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parent)

_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = tuple(f"{_STANDARD}/{folder}-packages" for folder in ("site", "dist"))
_PROMPTS = ("<stdin>", "<ipython-input", "<python-input", "<doctest ")


def _folder_of(package: str) -> str:
    found = importlib.util.find_spec(package)
    return str(Path(found.origin).resolve().parent) if found is not None and found.origin else package


_OURS = tuple(f"{folder}/" for folder in (PACKAGE, str(Path(PACKAGE).parent / "popdist"), _folder_of("torch")))


def is_typed(file: str, frame_name: str = "<module>", module: str | None = None) -> bool:
    """Whether code without a file is the user's own, not something that a library generated.

    >>> is_typed("<stdin>"), is_typed("<ipython-input-3-af01>"), is_typed("<eval_with_key>.7")
    (True, True, False)
    >>> is_typed("<string>", "<module>", "__main__"), is_typed("<string>", "__init__", "shop.models")
    (True, False)
    """
    if file.startswith(_PROMPTS):
        return True
    return file == "<string>" and module == "__main__" and not frame_name.startswith("__")


def is_users(frame: FrameType) -> bool:
    """Whether a frame is neither ours, nor torch's, nor the standard library's."""
    file = frame.f_code.co_filename
    if file.startswith("<"):
        return is_typed(file, frame.f_code.co_name, frame.f_globals.get("__name__"))
    if file.startswith(_OURS):
        return False
    return not file.startswith(_STANDARD) or file.startswith(_INSTALLED)


def users_frame(frame: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user at or above ``frame``, by default the caller's."""
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return frame


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning that points at the user's line, wherever in the package it comes up."""
    frame = users_frame(sys._getframe(1))
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
