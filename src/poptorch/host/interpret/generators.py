"""Random operations with an explicit generator, so that each draw depends on nothing but its key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


def with_generator(overload: Any) -> Callable[..., Any]:
    """A callable like ``overload`` that takes a ``generator`` argument."""
    if any(a.name == "generator" for a in overload._schema.arguments):
        return overload._op
    sibling = _generator_sibling(overload)
    return sibling._op if sibling is not None else _seeding_global_generator(overload)


def _generator_sibling(overload: Any) -> Any:
    packet = overload.overloadpacket
    name = overload._schema.overload_name
    for candidate in (f"{name}_generator" if name else "generator", "generator", f"generator_{name}"):
        if candidate in packet.overloads():
            found = getattr(packet, candidate)
            wanted = [a.name for a in overload._schema.arguments]
            if [a.name for a in found._schema.arguments if a.name != "generator"] == wanted:
                return found
    return None


_global_generator = threading.Lock()


def _seeding_global_generator(overload: Any) -> Callable[..., Any]:
    """For the few operations that only know torch's global generator: seed it, run, put it back."""

    def call(*args: Any, generator: torch.Generator, **kwargs: Any) -> Any:
        with _global_generator:
            before = torch.default_generator.get_state()
            torch.default_generator.set_state(generator.get_state())
            try:
                return overload(*args, **kwargs)
            finally:
                torch.default_generator.set_state(before)

    return call
