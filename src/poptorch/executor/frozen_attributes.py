"""Plain attributes of modules that were changed after the program was compiled: said once for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from poptorch.frames import warn_user

_PLAIN = (bool, int, float, str, type(None))
_EACH_CALL = 128
"""How many attributes one call compares: this takes a few microseconds. Larger models are gone through in turns."""

_SHOWN = 3
"""How many attributes one warning lists."""


class FrozenAttributes:
    """What the plain attributes of a model were when it was compiled."""

    def __init__(self, captured: nn.Module, shown: nn.Module, copied: Mapping[str, Any] | None = None) -> None:
        """``captured`` ran; the user knows it as ``shown``, with the same children.

        ``copied`` are the attributes that were taken from ``shown`` when it was wrapped, if it is another object.
        """
        self._known: list[tuple[dict[str, Any], str, str, Any]] = []
        """The dictionary of the module, the attribute, its full name, and its value."""

        self._mode = captured.training
        self._shown = shown
        self._next = 0
        for path, module in captured.named_modules():
            holder = vars(shown) if module is captured else vars(module)
            for name, value in holder.items():
                if type(value) in _PLAIN and not name.startswith("_"):
                    if copied is not None and module is captured:
                        value = copied.get(name, value)  # a later one has not reached the program
                    self._known.append((holder, name, f"{path}.{name}" if path else name, value))

    def check(self) -> None:
        """To be called before each call: warns of what was changed since the program was compiled."""
        known = self._known
        if self._shown.training is not self._mode:
            self._mode = self._shown.training
            self._warn(known)  # all modules at once, as a rule
        elif len(known) <= _EACH_CALL:
            for holder, name, _, value in known:
                if holder.get(name) is not value:
                    self._warn(known)
                    break
        else:
            part = known[self._next : self._next + _EACH_CALL]
            self._next = self._next + _EACH_CALL if self._next + _EACH_CALL < len(known) else 0
            if any(holder.get(name) is not value for holder, name, _, value in part):
                self._warn(known)

    def _warn(self, known: list[tuple[dict[str, Any], str, str, Any]]) -> None:
        changed = [(full, value, holder[name]) for holder, name, full, value in known if _differs(holder, name, value)]
        # What is said once is not compared any more, and equal values are known in the form that they have now.
        self._known = [
            (holder, name, full, holder.get(name, value))
            for holder, name, full, value in known
            if not _differs(holder, name, value)
        ]
        modes = [change for change in changed if change[0].rpartition(".")[2] == "training"]
        others = [change for change in changed if change not in modes]
        if modes:
            before = "train" if modes[0][1] else "eval"
            warn_user(
                f"{_listed(modes)} after the model was compiled in {before} mode. This executor goes on in that mode: "
                "dropout and norms are part of the program. Call train() or eval() before the model is compiled, "
                "and wrap it once for each mode.",
            )
        if others:
            warn_user(
                f"{_listed(others)} after the model was compiled. This has no effect: plain attributes are constants "
                "of the program. Call destroy() on the executor and wrap the model again; or pass "
                "the value as an argument of forward(), or keep it in a buffer, which copyWeightsToDevice() sends.",
            )


def _differs(holder: dict[str, Any], name: str, value: Any) -> bool:
    now = holder.get(name, value)
    return now is not value and not (type(now) is type(value) and now == value)


def _listed(changed: list[tuple[str, Any, Any]]) -> str:
    listed = ", ".join(f"{name} was set from {before!r} to {after!r}" for name, before, after in changed[:_SHOWN])
    return f"{listed} and {len(changed) - _SHOWN} more changes" if len(changed) > _SHOWN else listed
