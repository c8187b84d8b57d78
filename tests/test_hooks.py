"""Compile hooks: order, removal and what is refused."""

from __future__ import annotations

import pytest

import poptorch
from poptorch import hooks


@pytest.mark.parametrize(
    ("register", "run"),
    [(poptorch.registerPreCompileHook, hooks.run_pre), (poptorch.registerPostCompileHook, hooks.run_post)],
)
def test_hooks_run_in_order_until_removed(register, run) -> None:
    calls: list[str] = []
    first = register(lambda: calls.append("first"))
    second = register(lambda: calls.append("second"))
    run()
    first.remove()
    run()
    second.remove()
    run()
    assert calls == ["first", "second", "second"]


def test_a_hook_may_remove_itself() -> None:
    calls: list[int] = []

    def once() -> None:
        calls.append(1)
        handle.remove()

    handle = poptorch.registerPreCompileHook(once)
    hooks.run_pre()
    hooks.run_pre()
    assert calls == [1]


def test_the_two_kinds_are_separate() -> None:
    calls: list[str] = []
    handle = poptorch.registerPreCompileHook(lambda: calls.append("pre"))
    hooks.run_post()
    handle.remove()
    assert calls == []


def test_hooks_must_be_callable() -> None:
    with pytest.raises(RuntimeError, match="Pre-compile hook must be callable"):
        poptorch.registerPreCompileHook("no")
    with pytest.raises(RuntimeError, match="Post-compile hook must be callable"):
        poptorch.registerPostCompileHook(None)
