"""Printing a model together with the annotations that hang on its modules."""

from __future__ import annotations

import builtins
from typing import Any

from torch import nn


def module_repr(m: nn.Module) -> str:
    """The text of ``m`` as torch prints it, each module preceded by its forward-pre-hooks.

    Annotations made with ``BeginBlock`` are such hooks, so this shows where blocks begin.

    >>> print(module_repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU())))
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    hooks = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    extra = [line for line in m.extra_repr().split("\n") if line]
    children = [
        f"({name}): {_indented(module_repr(child)) if child is not None else None}"
        for name, child in m._modules.items()
    ]
    return f"{hooks}{m._get_name()}({_body(extra, children)})"


def _body(extra: list[str], children: list[str]) -> str:
    if len(extra) == 1 and not children:
        return extra[0]
    items = extra + children
    return "\n  " + "\n  ".join(items) + "\n" if items else ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def print(m: Any, **kwargs: Any) -> None:
    """Print a module with its annotations (see :func:`module_repr`), and anything else as usual.

    >>> print(nn.ReLU())
    ReLU()
    """
    builtins.print(module_repr(m) if isinstance(m, nn.Module) else m, **kwargs)
