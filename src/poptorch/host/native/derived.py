"""Custom operators that stand for other operators with something added: a random key, a token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class DerivedOperators:
    """Operators of one namespace, each registered when it is asked for the first time."""

    def __init__(self, namespace: str, register: Callable[[DerivedOperators, Any], Any]) -> None:
        self._namespace = namespace
        self._library = torch.library.Library(namespace, "DEF")
        self._register = register
        self._known: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def of(self, overload: Any) -> Any:
        """The operator that stands for ``overload``."""
        with self._lock:
            if overload not in self._known:
                self._known[overload] = self._register(self, overload)
            return self._known[overload]

    def define(self, name: str, signature: str, run: Callable[..., Any], describe: Callable[..., Any]) -> Any:
        """Register one: what it does with tensors, and with fake ones."""
        self._library.define(name + signature)
        self._library.impl(name, run, "CPU")
        torch.library.register_fake(f"{self._namespace}::{name}", describe, lib=self._library)
        return getattr(getattr(torch.ops, self._namespace), name).default
