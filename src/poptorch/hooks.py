"""What users ask to have done around every graph capture of the process: hooks, and functions to replace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], object]


class Substitution(Protocol):
    """Puts functions in place of others, for as long as a model is captured."""

    def replace(self) -> object:
        """Put the replacements in place."""

    def restore(self) -> object:
        """Take them away again."""


_before: OrderedDict[int, Hook] = OrderedDict()
_after: OrderedDict[int, Hook] = OrderedDict()

_substitutions: list[Callable[[], Substitution]] = []


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


def register_substitution(kind: Callable[[], Substitution]) -> None:
    """Make a ``kind()`` at each capture and let it replace functions meanwhile. Repeating this changes nothing."""
    if kind not in _substitutions:
        _substitutions.append(kind)


def remove_substitution(kind: Callable[[], Substitution]) -> None:
    """Undo :func:`register_substitution`."""
    _substitutions.remove(kind)


@contextmanager
def substitutions() -> Iterator[None]:
    """Replace in the order of registration; restore in reverse order, whatever happens inside.

    >>> class Loud:
    ...     def replace(self): print("replaced")
    ...     def restore(self): print("restored")
    >>> register_substitution(Loud)
    >>> with substitutions():
    ...     print("captured")
    replaced
    captured
    restored
    >>> remove_substitution(Loud)
    """
    with ExitStack() as undo:
        for kind in list(_substitutions):
            substitution = kind()
            substitution.replace()
            undo.callback(substitution.restore)
        yield


def _register(hooks: OrderedDict[int, Hook], hook: Hook, kind: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{kind} hook must be callable, got {hook!r} of type {type(hook).__name__}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _run(hooks: OrderedDict[int, Hook]) -> None:
    for hook in list(hooks.values()):  # a hook may remove itself
        hook()
