"""Blocks: the annotations that say where a part of a model runs.

All of them write the current placement of the capture that runs on this thread. When nothing is being
captured (an ordinary PyTorch call) they do nothing at all.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from poptorch import ambient
from poptorch.errors import BlockTwiceError, createPoptorchError, misuse
from poptorch.frames import warn_user
from poptorch.placement.strategies import BlockId, ExecutionStrategy, PipelinedExecution

P = ParamSpec("P")
R = TypeVar("R")

_NEXT_AUTO_ID = "placement.next_auto_id"
_FALLBACK_STRATEGY = "placement.fallback_strategy"


# --- the placement state machine --------------------------------------------------------------------------


def enter(context: ambient.CaptureContext, placement: ambient.Placement | None) -> None:
    """Make ``placement`` current and note that it started; ``None`` leaves no block open."""
    context.placement = placement
    if placement is not None:
        context.block_starts.append(placement)


def _strategy_of(context: ambient.CaptureContext) -> ExecutionStrategy:
    if context.settings.strategy is not None:
        return context.settings.strategy
    fallback: ExecutionStrategy = context.extras.setdefault(_FALLBACK_STRATEGY, PipelinedExecution())
    return fallback


class BlockMark:
    """One annotation: the ID and IPU the user gave, and the automatic ID once it has been drawn.

    An automatic ID stays with its mark. A copy of the mark draws its own: it annotates another module.
    """

    def __init__(self, user_id: BlockId | None, ipu_id: int | None) -> None:
        self.user_id = user_id
        self.ipu_id = ipu_id
        self._auto_id: int | None = None

    def start(self) -> None:
        """Open the block in the running capture, if there is one."""
        context = ambient.current()
        if context is not None:
            block_id = self._block_id(context)
            ipu = _checked_ipu(self.ipu_id, block_id)
            placement = _strategy_of(context).place(block_id, ipu, leading=context.leading)
            enter(context, placement)
            context.unplaced = str(block_id) if placement is None else None

    def _block_id(self, context: ambient.CaptureContext) -> Hashable:
        if self.user_id is not None and self.user_id != "":
            return self.user_id
        unused: int = context.extras.get(_NEXT_AUTO_ID, 0)
        if self._auto_id is None:
            self._auto_id = unused
        # An ID kept from an earlier capture must not be drawn again by somebody else in this one.
        context.extras[_NEXT_AUTO_ID] = max(unused, self._auto_id + 1)
        return str(self._auto_id)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_auto_id": None}


def _checked_ipu(ipu_id: Any, block_id: Hashable) -> int | None:
    """The index as a plain integer: NumPy's and computed strings such as ``f"{n}"`` will do, too."""
    if ipu_id is None:
        return None
    try:
        index = int(ipu_id) if isinstance(ipu_id, str) else operator.index(ipu_id)
    except (TypeError, ValueError):
        index = -1
    if index < 0:
        raise createPoptorchError(
            f"Block '{block_id}' asks for ipu_id={ipu_id!r}: an IPU index must be an integer, counted from "
            "0 inside the device that one replica occupies."
        )
    return index


def close() -> None:
    """Leave the open block: no operation may follow until another one starts."""
    context = ambient.current()
    if context is not None:
        context.placement = context.unplaced = None


# --- Block ------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A scope whose operations belong to one block.

    Scopes do not nest: after leaving one, no operation may follow until another block starts.

    >>> class Network(torch.nn.Module):
    ...     def forward(self, x):
    ...         with Block("first", ipu_id=0):
    ...             x = x + 1
    ...         with Block("second", ipu_id=1):
    ...             return x * 2
    >>> Network()(torch.tensor(3))
    tensor(8)
    """

    @staticmethod
    def useAutoId() -> None:
        """Number the blocks without an ID from 0 again; meant as the first statement of ``forward``."""
        context = ambient.current()
        if context is not None:
            context.extras[_NEXT_AUTO_ID] = 0

    @staticmethod
    def start(user_id: BlockId | None = None, ipu_id: int | None = None) -> None:
        """Start a block that lasts until the next one starts.

        >>> def forward(x):
        ...     Block.start("first", ipu_id=0)
        ...     x = x + 1
        ...     Block.start("second", ipu_id=1)
        ...     return x * 2
        >>> forward(3)
        8
        """
        if ambient.current() is not None:
            BlockMark(user_id, ipu_id).start()

    def __init__(self, user_id: BlockId | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close()

    def extra_repr(self) -> str:
        return f"user_id={self._user_id}, ipu_id={self._ipu_id}"


def BlockFunction(
    user_id: BlockId | None = None, ipu_id: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function or method so that its operations belong to one block.

    >>> @BlockFunction("double", ipu_id=1)
    ... def double(x):
    ...     return x * 2
    >>> double(4)
    8
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def in_block(*args: P.args, **kwargs: P.kwargs) -> R:
            Block.start(user_id, ipu_id)
            try:
                return function(*args, **kwargs)
            finally:
                close()

        return in_block

    return decorate


# --- BeginBlock -------------------------------------------------------------------------------------------


class BlockHook(BlockMark):
    """The forward-pre-hook that :func:`BeginBlock` leaves on a module."""

    def __init__(self, user_id: BlockId | None, ipu_id: int | None) -> None:
        super().__init__(user_id, ipu_id)
        self._hook_id = -1

    def attach(self, module: torch.nn.Module) -> None:
        """Run this hook before ``module``'s forward, after the hooks that are there already."""
        self._hook_id = module.register_forward_pre_hook(self).id

    def __call__(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.start()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A module loaded in a new process brings its old hook number along, and torch would hand the same
        # number to the next hook, which would silently replace this one.
        RemovableHandle.next_id = max(RemovableHandle.next_id, self._hook_id + 1)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.user_id}, ipu_id={self.ipu_id})"


class LegacyBeginBlockFn(torch.nn.Module):
    """A callable that starts a block and then calls what it wraps.

    >>> LegacyBeginBlockFn(max, "largest", ipu_id=1)(3, 5)
    5
    """

    def __init__(
        self, layer_to_call: Callable[..., Any], user_id: BlockId | None = None, ipu_id: int | None = None
    ) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id
        self._layer_to_call = layer_to_call
        self._mark = BlockMark(user_id, ipu_id)

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        """Start the block, then forward every argument to the wrapped callable."""
        self._mark.start()
        return self._layer_to_call(*input, **kwargs)


def _hooks_of(module: torch.nn.Module) -> list[int]:
    return [key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, BlockHook)]


def BeginBlock(layer_to_call: Any, user_id: BlockId | None = None, ipu_id: int | None = None) -> Any:
    """Start a block whenever ``layer_to_call`` is called; everything after it stays in that block.

    A module is annotated in place and returned; any other callable comes back wrapped.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> BeginBlock(model[1], "activation", ipu_id=1) is model[1]
    True
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise createPoptorchError(
                "module is not an instance of torch.nn.Module or function. "
                f"BeginBlock annotates something that can be called, not {layer_to_call!r}."
            )
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    if _hooks_of(layer_to_call):
        raise misuse(
            BlockTwiceError,
            f"module has already been assigned to a block: {type(layer_to_call).__name__} carries "
            f"{layer_to_call._forward_pre_hooks[_hooks_of(layer_to_call)[0]]!r}. "
            "Call poptorch.removeBlocks(module) before annotating it again.",
        )
    if _compiled.get(id(layer_to_call)) is layer_to_call:
        warn_user(
            f"BeginBlock has no effect on a model that is compiled already, of which this "
            f"{type(layer_to_call).__name__} is a part. Call it before the first call, or destroy() and wrap again."
        )
    BlockHook(user_id, ipu_id).attach(layer_to_call)
    return layer_to_call


_compiled: weakref.WeakValueDictionary[int, torch.nn.Module] = weakref.WeakValueDictionary()
"""Modules that are part of a program; by their ``id``, because modules may be equal without being the same."""


def note_compiled(model: torch.nn.Module) -> None:
    """From here on a new block in ``model`` comes too late."""
    _compiled.update({id(module): module for module in model.modules()})


def forget_compiled(model: torch.nn.Module) -> None:
    """The program of ``model`` is gone: it may be divided anew."""
    for module in model.modules():
        _compiled.pop(id(module), None)


def removeBlocks(module: torch.nn.Module) -> None:
    """Remove the ``BeginBlock`` annotations of ``module`` and of everything inside it.

    >>> layer = BeginBlock(torch.nn.Linear(2, 2), ipu_id=1)
    >>> removeBlocks(layer)
    >>> _ = BeginBlock(layer, ipu_id=0)
    """
    if not isinstance(module, torch.nn.Module):
        raise AssertionError(f"removeBlocks expects a torch.nn.Module, not {module!r}.")
    for annotated in module.modules():
        for hook in _hooks_of(annotated):
            del annotated._forward_pre_hooks[hook]


@contextlib.contextmanager
def without_blocks(module: torch.nn.Module) -> Iterator[None]:
    """Take the annotations of ``module`` away for a while; what is annotated meanwhile is gone afterwards.

    >>> layer = BeginBlock(torch.nn.Linear(2, 2), ipu_id=1)
    >>> with without_blocks(layer):
    ...     _ = BeginBlock(layer, ipu_id=0)
    >>> list(layer._forward_pre_hooks.values())
    [BeginBlock(user_id=..., ipu_id=1)]
    """
    before = [(inner, dict(inner._forward_pre_hooks)) for inner in module.modules()]
    removeBlocks(module)
    try:
        yield
    finally:
        for inner, hooks in before:
            inner._forward_pre_hooks.clear()
            inner._forward_pre_hooks.update(hooks)
