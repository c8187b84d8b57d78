"""Functions that users ask to have called before and after every graph capture of the process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], object]

_before: OrderedDict[int, Hook] = OrderedDict()
_after: OrderedDict[int, Hook] = OrderedDict()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Call ``hook()`` before each capture of a model, until the returned handle is removed.

    >>> handle = registerPreCompileHook(lambda: print("about to compile"))
    >>> run_pre()
    about to compile
    >>> handle.remove()
    >>> run_pre()
    """
    return _register(_before, hook, "Pre-compile")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Call ``hook()`` after each capture of a model, until the returned handle is removed.

    >>> handle = registerPostCompileHook(lambda: print("compiled"))
    >>> run_post()
    compiled
    >>> handle.remove()
    """
    return _register(_after, hook, "Post-compile")


def run_pre() -> None:
    """Call the pre-compile hooks in the order of their registration."""
    _run(_before)


def run_post() -> None:
    """Call the post-compile hooks in the order of their registration."""
    _run(_after)


def _register(hooks: OrderedDict[int, Hook], hook: Hook, kind: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{kind} hook must be callable, got {hook!r} of type {type(hook).__name__}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _run(hooks: OrderedDict[int, Hook]) -> None:
    for hook in list(hooks.values()):  # a hook may remove itself
        hook()
