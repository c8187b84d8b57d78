"""``MultiConv``: plan several independent convolutions as one."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from poptorch import ambient
from poptorch.enums import MultiConvPlanType
from poptorch.errors import createPoptorchError

ATTRIBUTE = "__multi_conv"
"""The attribute group on the convolutions of a scope: ``id``, ``index`` (their order), ``options`` (JSON)."""

_EXTRA = "ops.multi_conv"

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).resolve().parents[1]))

_CONVOLUTIONS = frozenset(
    getattr(home, name)
    for home in (torch, F)
    for name in (
        *(f"conv{n}d" for n in (1, 2, 3)),
        *(f"conv_transpose{n}d" for n in (1, 2, 3)),
        "convolution",
    )
    if hasattr(home, name)
)

_PARTIALS_NAMES = {torch.float32: "float", torch.float16: "half"}


class MultiConv:
    """Merge the data-independent convolutions of a scope into one multi-convolution.

    >>> plan = MultiConv().planType(MultiConvPlanType.Parallel).cycleBackOff(0.2)
    >>> with plan:
    ...     y = torch.nn.functional.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 2))
    """

    def __init__(self) -> None:
        self._available_memory_proportions: Any = None
        self._partials_types: Any = None
        self._plan_type: MultiConvPlanType | None = None
        self._per_conv_reserved_tiles: int | None = None
        self._cycle_back_off: float | None = None
        self._enable_conv_dithering: Any = None
        self._scopes: list[_Scope | None] = []

    def availableMemoryProportions(self, value: Any) -> MultiConv:
        """Tile memory each convolution may use: one float, or one per convolution; ``None`` resets."""
        if value is not None:
            assert _one_or_many(value, float), "Invalid available memory proportion!"
        self._available_memory_proportions = value
        return self

    def partialsTypes(self, value: Any) -> MultiConv:
        """Type of the partial sums, ``torch.float`` or ``torch.half``: one, or one per convolution."""
        types = value if isinstance(value, (list, tuple)) else [value]
        if not types or any(not isinstance(dtype, torch.dtype) or dtype not in _PARTIALS_NAMES for dtype in types):
            raise ValueError("Invalid partials types. Expecting torch.float or torch.half, or a list or tuple of them.")
        self._partials_types = value
        return self

    def planType(self, value: MultiConvPlanType | None) -> MultiConv:
        """Run the convolutions in parallel (the default) or one after the other; ``None`` resets."""
        if value is not None:
            assert isinstance(value, MultiConvPlanType), "Invalid plan type"
        self._plan_type = value
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Tiles to set aside for each convolution (50 unless set)."""
        assert isinstance(value, int), "Invalid number of reserved tiles: expecting int"
        assert not isinstance(value, bool), "Invalid number of reserved tiles: expecting int, not bool"
        self._per_conv_reserved_tiles = value
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """How much slower than the fastest plan a convolution may be, from 0 to 1 (0.1 unless set)."""
        assert isinstance(value, float), "Invalid cycle back off: expecting float"
        assert 0.0 <= value <= 1.0, "Invalid cycle back off: expecting a value between 0 and 1"
        self._cycle_back_off = value
        return self

    def enableConvDithering(self, value: Any) -> MultiConv:
        """Spread the convolutions' tiles: one bool for all, or one per convolution; ``None`` resets."""
        if value is not None and not _one_or_many(value, bool):
            raise ValueError("value must be bool or list of bools")
        self._enable_conv_dithering = value
        return self

    def __enter__(self) -> MultiConv:
        context = ambient.current()
        if context is None:
            self._scopes.append(None)
            return self
        if context.extras.get(_EXTRA + ".open"):
            raise createPoptorchError(
                "Nested poptorch.MultiConv is not supported. Close the first scope before the next."
            )
        self._scopes.append(_Scope(context, self._options()))
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        scope = self._scopes.pop()
        if scope is None:
            return
        convolutions = scope.close()
        if type is None:
            self._check_counts(convolutions)

    def _options(self) -> str:
        partials = self._partials_types
        plan = self._plan_type
        options = {
            "availableMemoryProportions": self._available_memory_proportions,
            "partialsTypes": _map_one_or_many(_PARTIALS_NAMES.__getitem__, partials) if partials is not None else None,
            "planType": None if plan is None else plan.name,
            "perConvReservedTiles": self._per_conv_reserved_tiles,
            "cycleBackOff": self._cycle_back_off,
            "enableConvDithering": self._enable_conv_dithering,
        }
        return json.dumps({key: value for key, value in options.items() if value is not None}, sort_keys=True)

    def _check_counts(self, convolutions: int) -> None:
        if convolutions == 0:
            raise createPoptorchError(
                "Unexpected end_multi_conv: the poptorch.MultiConv scope has no convolution. Call convolutions in it, "
                "or leave it out."
            )
        for name, value in (
            ("availableMemoryProportions", self._available_memory_proportions),
            ("partialsTypes", self._partials_types),
            ("enableConvDithering", self._enable_conv_dithering),
        ):
            if isinstance(value, (list, tuple)) and len(value) != convolutions:
                raise createPoptorchError(
                    f"poptorch.MultiConv: {name} has {len(value)} entries, but the scope has {convolutions} "
                    "convolutions. Give one value for all, or one per convolution."
                )


class _Scope(TorchFunctionMode):
    """Tags each convolution called inside with the scope's number, its own index and the options.

    Follows what is computed from the convolutions' results, too: no other convolution may need it.
    """

    def __init__(self, context: ambient.CaptureContext, options: str) -> None:
        super().__init__()
        self._context = context
        self._options = options
        self._lines: list[str] = []  # one per convolution
        self._origins: dict[int, tuple[torch.Tensor, int]] = {}
        self._number = context.extras.get(_EXTRA + ".count", 0)
        context.extras[_EXTRA + ".count"] = self._number + 1
        context.extras[_EXTRA + ".open"] = True
        self._stack = ExitStack()
        self._stack.enter_context(self)

    def close(self) -> int:
        self._stack.close()
        self._context.extras[_EXTRA + ".open"] = False
        self._origins.clear()
        return len(self._lines)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        origin = self._origin_of((args, kwargs))
        if func not in _CONVOLUTIONS:
            result = func(*args, **kwargs)
            if origin is not None:
                # Arguments as well: the function may have written into any of them.
                self._note((result, args, kwargs) if _may_write(func) else result, origin)
            return result
        index, line = len(self._lines), _line_of_user()
        if origin is not None:
            raise createPoptorchError(
                f"poptorch.MultiConv: the convolution at {line} needs the result of the one at {self._lines[origin]}, "
                "but the convolutions of a scope must be data-independent: they are computed together. Put the later "
                "one outside of the scope, or into a scope of its own."
            )
        tag = {"id": str(self._number), "index": str(index), "options": self._options}
        self._lines.append(line)
        with ambient.attribute_scope({ATTRIBUTE: tag}):
            result = func(*args, **kwargs)
        self._note(result, index)
        return result

    def _origin_of(self, values: Any) -> int | None:
        """The convolution of this scope that a tensor among the values was computed from, if any."""
        found = (self._origins.get(_memory_of(tensor)) for tensor in _tensors(values))
        return next((origin for _, origin in filter(None, found)), None)

    def _note(self, values: Any, origin: int) -> None:
        for tensor in _tensors(values):
            self._origins.setdefault(_memory_of(tensor), (tensor, origin))  # kept alive: memory is reused


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _memory_of(tensor: torch.Tensor) -> int:
    """What views of one tensor have in common."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _may_write(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def _line_of_user() -> str:
    """``file:line`` of the innermost frame outside of torch and of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _one_or_many(value: Any, kind: type) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, kind) for item in value)
    return isinstance(value, kind)


def _map_one_or_many(function: Any, value: Any) -> Any:
    return [function(item) for item in value] if isinstance(value, (list, tuple)) else function(value)
