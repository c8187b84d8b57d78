"""torch's functions that run other functions: branches, loops, and attention with functions of the scores.

torch hands their parts to its own compiler. A program has branches and loops of its own, which take their place;
attention is written out. For others there is an error with the user's line.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from poptorch import ambient
from poptorch.capture.locations import user_location
from poptorch.errors import Error, createPoptorchError
from poptorch.ops import control_flow
from poptorch.ops.while_loops import while_loop

aten = torch.ops.aten


class CompilerAside:
    """torch's own compiler, which these functions call, looks on without compiling until :meth:`end`."""

    _lock = threading.Lock()
    _users = 0
    _restore: Any = None

    def __init__(self) -> None:
        self._begun = False

    def begin(self) -> None:
        """Can be said again. Others may compile at the same time: the last one to end puts things back."""
        if self._begun:
            return
        self._begun = True
        with self._lock:
            if not CompilerAside._users:
                CompilerAside._restore = torch.compiler.set_stance("force_eager")
            CompilerAside._users += 1

    def end(self) -> None:
        if not self._begun:
            return
        self._begun = False
        with self._lock:
            CompilerAside._users -= 1
            if not CompilerAside._users:
                CompilerAside._restore.__exit__(None, None, None)


_ATTENTION = "torch.nn.attention.flex_attention"
_FUNCTIONS = "torch._higher_order_ops.utils"


def prepare() -> None:
    """Let torch's functions be called under capture.

    The check of its attention looks at the host, whose kernel does not train. The others are handed to its compiler,
    which refuses to compile here, and would not compile them outside of capture, either, from then on.
    """
    attention, functions = sys.modules.get(_ATTENTION), sys.modules.get(_FUNCTIONS)
    if attention is not None:
        _check_outside_of_capture(attention)
    if functions is not None:
        _compile_outside_of_capture(functions)


@cache
def _compile_outside_of_capture(module: Any) -> None:
    original = getattr(module, "_hop_compile_and_call", None)
    if original is None:
        return

    def call(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        if ambient.current() is None:
            return original(function, args, kwargs)
        return function(*args, **(kwargs or {}))

    module._hop_compile_and_call = call


@cache
def _check_outside_of_capture(module: Any) -> None:
    original = getattr(module, "_validate_device", None)
    if original is None:
        return

    def check(*tensors: Tensor) -> None:
        if ambient.current() is None:
            original(*tensors)

    module._validate_device = check


def call(func: Any, args: Any, kwargs: Any, compiler: CompilerAside) -> Any:
    """Carry out such a function in the form that a program has."""
    replacement = _REPLACEMENTS.get(func.name())
    if replacement is None:
        raise refusal(func)

    def run() -> Any:
        compiler.begin()
        return replacement(*args, **kwargs)

    return torch.compiler.disable(run)()


def refusal(func: Any) -> Error:
    """The error for a function that has no equivalent."""
    return createPoptorchError(
        f"torch's {func.name()} at {user_location()} cannot be compiled. Use poptorch.cond for branches that are "
        "decided at run time, poptorch.for_loop for loops, torch.nn.functional.scaled_dot_product_attention for "
        "attention, or plain Python, which is unrolled."
    )


def _cond(condition: Any, then: Callable[..., Any], other: Callable[..., Any], operands: Any = ()) -> Any:
    if not isinstance(condition, Tensor):
        return then(*operands) if condition else other(*operands)
    inputs, structure = pytree.tree_flatten(operands)
    returned: list[pytree.TreeSpec] = []
    bodies = [_flat(body, structure, returned) for body in (then, other)]
    results = control_flow.cond(condition, bodies[0], inputs, bodies[1], inputs)
    return pytree.tree_unflatten(results, returned[0])


def _flat(
    body: Callable[..., Any], structure: pytree.TreeSpec, returned: list[pytree.TreeSpec]
) -> Callable[..., list[Any]]:
    """The body with lists of tensors for arguments and results; notes the structure of its results."""

    def run(*tensors: Tensor) -> list[Any]:
        results, found = pytree.tree_flatten(body(*pytree.tree_unflatten(list(tensors), structure)))
        returned.append(found)
        return results

    return run


def _while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    carried: Sequence[Any],
    additional: Sequence[Any] = (),
    **settings: Any,
) -> tuple[Tensor, ...]:
    inputs = [value if isinstance(value, Tensor) else torch.tensor(value) for value in carried]
    results = while_loop(
        lambda *values: condition(*values, *additional), lambda *values: body(*values, *additional), inputs
    )
    return tuple(results)


# -- attention ---------------------------------------------------------------------------------------------------------


class _TensorsAsIndices(TorchFunctionMode):
    """``table[head]`` with a tensor of no dimensions: under ``vmap``, torch would ask for its value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(i, Tensor) and i.dtype is not torch.bool for i in indices):
                return aten.index.Tensor(args[0], list(indices))
        return func(*args, **(kwargs or {}))


def _by_position(
    function: Callable[..., Tensor], leading: Sequence[int | None], captured: int
) -> Callable[..., Tensor]:
    """A function of one row, head, query and key, for all of them."""
    for dimension in range(4):
        where: list[int | None] = [None] * 4
        where[3 - dimension] = 0
        function = torch.vmap(function, in_dims=(*leading, *where, *[None] * captured))
    return function


def _flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_score: Callable[..., Tensor],
    mask: Sequence[Any],
    scale: float,
    kernel_options: Any,
    of_score_captured: Sequence[Tensor] = (),
    of_mask_captured: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Results, and for each query the logarithm of the sum and the largest of the scores, both to base 2."""
    groups = query.size(1) // key.size(1)
    key, value = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (key, value))
    key, value = (t.expand(query.size(0), *t.shape[1:]) for t in (key, value))
    scores = query.float() @ key.float().transpose(-2, -1) * scale
    positions = [torch.arange(size) for size in scores.shape]
    with _TensorsAsIndices():
        counts = _by_position(mask[-1], (), len(of_mask_captured))(*positions, *of_mask_captured)
        scores = _by_position(of_score, (0,), len(of_score_captured))(scores, *positions, *of_score_captured)
    scores = scores.masked_fill(counts.logical_not(), -torch.inf)
    weights = torch._safe_softmax(scores, -1)
    empty = (scores == -torch.inf).all(-1)
    total = scores.masked_fill(empty.unsqueeze(-1), 0.0).logsumexp(-1).masked_fill(empty, -torch.inf)
    per_octave = 1.0 / math.log(2.0)
    largest = scores.amax(-1)
    return weights.to(query.dtype) @ value.to(query.dtype), total * per_octave, largest * per_octave


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "flex_attention": _flex_attention,
}
