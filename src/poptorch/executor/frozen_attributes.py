"""Plain attributes of modules that were changed after the program was compiled: said once for each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from poptorch.capture.state import is_constant
from poptorch.frames import warn_user

_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_CONTAINERS = (list, dict, set)
_LARGEST = 16
"""Containers with more items than that are known by what they are, not by what is in them."""

_EACH_CALL = 128
"""How many attributes one call compares: this takes a few microseconds. Larger models are gone through in turns."""

_INSIDE_EACH_CALL = 8
"""How many attributes one call looks into."""

_SHOWN = 3
"""How many attributes one warning lists."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An attribute as it was."""

    holder: dict[str, Any]
    """The dictionary of the module, or of its buffers."""

    name: str
    full: str
    value: Any
    content: Any
    """What else tells that it has changed: the version of a tensor, a copy of a container; ``None`` if nothing does."""

    @property
    def now(self) -> Any:
        return self.holder.get(self.name, self.value)

    def differs(self) -> bool:
        """Whether the attribute means something else now."""
        now, value = self.now, self.value
        if now is value:
            return self.content is not None and _content(now) != self.content
        if type(now) is not type(value):
            return True
        if isinstance(value, _CONTAINERS) and self.content is not None:
            return bool(_content(now) != self.content)
        return not (isinstance(value, (*_VALUES, tuple)) and _equal(now, value))

    def __str__(self) -> str:
        now, value = self.now, self.value
        if isinstance(now, torch.Tensor):
            how = "changed in place" if now is value else "replaced by another tensor"
            return f"{self.full} was {how}"
        before = self.content if isinstance(value, _CONTAINERS) and self.content is not None else value
        return f"{self.full} was set from {_short(before)} to {_short(now)}"


class FrozenAttributes:
    """What the plain attributes of a model were when it was compiled, and its sparse buffers."""

    def __init__(
        self,
        captured: nn.Module,
        shown: nn.Module,
        copied: Mapping[str, Any] | None = None,
        wrapped: nn.Module | None = None,
    ) -> None:
        """``captured`` ran; the user knows it as ``shown``, with the same children.

        ``copied`` are the attributes that were taken from ``shown`` when it was wrapped, if it is another object.
        ``wrapped`` is the object that the user wrapped, whose own attributes do not reach the program either.
        """
        self._known: list[_Known] = []
        self._inner: list[_Known] = []
        """Those of them that can change and remain the same object."""

        self._mode = captured.training
        self._shown = shown
        self._next = 0
        with torch._C.DisableTorchFunctionSubclass():  # not a look at weights that are plain attributes, too
            for path, module in captured.named_modules():
                holder = vars(shown) if module is captured else vars(module)
                earlier = copied if module is captured else None
                self._note(holder, path, earlier)
            if wrapped is not None and wrapped is not shown:
                self._note(vars(wrapped), "", None)

    def _note(self, holder: dict[str, Any], path: str, earlier: Mapping[str, Any] | None) -> None:
        for name, value in holder.items():
            if name.startswith("_"):
                continue
            if earlier is not None and isinstance(value, _VALUES):
                value = earlier.get(name, value)  # a later one has not reached the program
            self._add(holder, name, path, value)
        for name, buffer in holder.get("_buffers", {}).items():
            if buffer is not None and is_constant(buffer):
                self._add(holder["_buffers"], name, path, buffer)

    def _add(self, holder: dict[str, Any], name: str, path: str, value: Any) -> None:
        if isinstance(value, (nn.Parameter, nn.Module)):
            return
        known = _Known(holder, name, f"{path}.{name}" if path else name, value, _content(value))
        self._known.append(known)
        if known.content is not None:
            self._inner.append(known)

    def check(self) -> None:
        """To be called before each call: warns of what was changed since the program was compiled."""
        known = self._known
        if self._shown.training is not self._mode:
            self._mode = self._shown.training
            self._warn(known)  # all modules at once, as a rule
        elif len(known) <= _EACH_CALL:
            for one in known:
                if one.holder.get(one.name) is not one.value:
                    self._warn(known)
                    break
        else:
            part = known[self._next : self._next + _EACH_CALL]
            self._next = self._next + _EACH_CALL if self._next + _EACH_CALL < len(known) else 0
            if any(one.holder.get(one.name) is not one.value for one in part):
                self._warn(known)
        if self._inner:
            self._check_content()

    def _check_content(self) -> None:
        some = self._inner[:_INSIDE_EACH_CALL]
        if len(self._inner) > len(some):
            self._inner = self._inner[len(some) :] + some
        if any(_content(one.value) != one.content for one in some):
            self._warn(self._known)

    def _warn(self, known: list[_Known]) -> None:
        changed: list[_Known] = []
        self._known = []
        for one in known:  # what is said once is not compared any more; equal values are known in the form of now
            if one.differs():
                changed.append(one)
            else:
                self._known.append(replace(one, value=one.now))
        self._inner = [one for one in self._known if one.content is not None]
        modes = [one for one in changed if one.name == "training"]
        others = [one for one in changed if one.name != "training"]
        if modes:
            before = "train" if modes[0].value else "eval"
            warn_user(
                f"{_listed(modes)} after the model was compiled in {before} mode. This executor goes on in that mode: "
                "dropout and norms are part of the program. Call train() or eval() before the model is compiled, "
                "and wrap it once for each mode.",
            )
        if others:
            warn_user(
                f"{_listed(others)} after the model was compiled. This has no effect: plain attributes and "
                "sparse buffers are constants of the program. Call destroy() on the executor and wrap the model again; "
                "or pass the value as an argument of forward(), or keep it in a dense buffer, which "
                "copyWeightsToDevice() sends.",
            )


def _content(value: Any) -> Any:
    """What tells whether something has changed that is still the same object; ``None`` if nothing does."""
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, _CONTAINERS) and len(value) <= _LARGEST:
        items = value.values() if isinstance(value, dict) else value
        return copy.copy(value) if all(isinstance(item, _VALUES) for item in items) else None
    return None


def _equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except (RuntimeError, ValueError, TypeError):  # tensors and arrays inside
        return False


def _short(value: Any) -> str:
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= 80 else f"{text[:80]} ..."


def _listed(changed: list[_Known]) -> str:
    texts = list(dict.fromkeys(map(str, changed)))  # of the same name on the wrapped object and on that of the executor
    listed = ", ".join(texts[:_SHOWN])
    return f"{listed} and {len(texts) - _SHOWN} more changes" if len(texts) > _SHOWN else listed
