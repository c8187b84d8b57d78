"""Which operations run in which floating-point type inside an autocast region.

A :class:`Policy` is four lists of torch functions and ``torch.nn.Module`` classes. ``default`` is the policy that
``Options.Precision`` starts with. Regions are opened by :class:`autocast`, in a ``with`` statement or as a decorator,
and by ``module.autocast()``, which this module adds to ``torch.nn.Module``. The innermost region decides. They matter
only while a model is captured for the IPU: ordinary execution is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from poptorch import ambient

if TYPE_CHECKING:
    from poptorch.options import Options

LISTS = ("fp16", "fp32", "promote", "demote")


class Policy:
    """The type of each listed operation inside an autocast region.

    * ``fp16``: runs in float16. * ``fp32``: runs in float32.
    * ``promote``: mixed operands become float32. * ``demote``: mixed operands become float16.

    >>> policy = Policy(fp16=[torch.matmul], fp32=[torch.nn.LayerNorm])
    >>> policy
    Policy(fp16=[matmul], fp32=[LayerNorm], promote=[], demote=[])
    """

    def __init__(
        self,
        fp16: Sequence[Any] | None = None,
        fp32: Sequence[Any] | None = None,
        promote: Sequence[Any] | None = None,
        demote: Sequence[Any] | None = None,
    ) -> None:
        self.fp16 = list(fp16 or ())
        self.fp32 = list(fp32 or ())
        self.promote = list(promote or ())
        self.demote = list(demote or ())

    def apply(self, module: torch.nn.Module, options: Options) -> None:
        """Convert every module inside ``module`` (itself included) on which ``autocast()`` was called."""
        for layer in module.modules():
            self.applyToLayer(layer, options)

    def applyToLayer(self, module: torch.nn.Module, options: Options) -> None:
        """Convert the parameters of one module, in place, if ``autocast()`` was called on it and its class is listed.

        Nothing happens when the master switch of ``options`` is off.

        >>> import poptorch
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.autocast()
        >>> Policy(fp16=[torch.nn.Linear]).applyToLayer(layer, poptorch.Options())
        >>> layer.weight.dtype
        torch.float16
        """
        if not options.Precision.autocast_enabled or not module.__dict__.get(_FLAG, False):
            return
        wanted = self._type_of(module)
        if wanted is not None:
            module.to(wanted)

    def _type_of(self, module: torch.nn.Module) -> torch.dtype | None:
        types = {p.dtype for p in module.parameters()} & {torch.float16, torch.float32}
        if len(types) > 1 and self._lists("promote", module):
            return torch.float32
        if len(types) > 1 and self._lists("demote", module):
            return torch.float16
        if self._lists("fp16", module):
            return torch.float16
        return torch.float32 if self._lists("fp32", module) else None

    def _lists(self, name: str, module: torch.nn.Module) -> bool:
        classes = tuple(entry for entry in getattr(self, name) if isinstance(entry, type))
        return isinstance(module, classes)

    def names(self) -> dict[str, list[str]]:
        """The plain names in each list: ``{"fp16": ["matmul"], …}``."""
        return {name: [_plain_name(entry) for entry in getattr(self, name)] for name in LISTS}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in LISTS)

    __hash__ = None  # type: ignore[assignment]  # the lists may change

    def __repr__(self) -> str:
        # Plain names: the repr of a function holds its address, and equal policies must print alike.
        lists = (f"{name}=[{', '.join(entries)}]" for name, entries in self.names().items())
        return f"Policy({', '.join(lists)})"


def _plain_name(entry: Any) -> str:
    return str(getattr(entry, "__name__", None) or entry)


default = Policy(
    fp16=[
        torch.addbmm,
        torch.addmm,
        torch.addmv,
        torch.addr,
        torch.baddbmm,
        torch.bmm,
        torch.chain_matmul,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_tbc,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
        torch.convolution,
        torch.matmul,
        torch.mm,
        torch.mv,
        torch.nn.Conv2d,
    ],
    promote=[
        torch.addcdiv,
        torch.addcmul,
        torch.atan2,
        torch.bilinear,
        torch.cat,
        torch.cross,
        torch.dot,
        torch.equal,
        torch.index_put,
        torch.stack,
        torch.tensordot,
    ],
)
"""The policy of a new ``Options``: matrix products and convolutions in float16, mixed joins in float32."""


_FLAG = "_poptorch_autocast"
_REGIONS = "autocast"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _open(enabled: bool) -> None:
    context = ambient.current()
    if context is not None:
        context.extras.setdefault(_REGIONS, []).append(enabled)


def _close() -> None:
    context = ambient.current()
    if context is not None and context.extras.get(_REGIONS):
        context.extras[_REGIONS].pop()


def region_is_active() -> bool:
    """Whether the code that is being captured now lies in a region, and the innermost one is on."""
    context = ambient.current()
    regions: list[bool] = context.extras.get(_REGIONS, []) if context is not None else []
    return bool(regions) and regions[-1]


class autocast:
    """A region where operations get the types of the policy, or with ``False`` one where they do not.

    >>> @autocast()
    ... def product(x, y):
    ...     return torch.bmm(x, y)
    >>> with autocast(False):
    ...     product(torch.ones(1, 2, 2), torch.ones(1, 2, 2)).dtype  # on the host nothing changes
    torch.float32
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = bool(enabled)

    def __enter__(self) -> None:
        _open(self._enabled)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        _close()

    def __call__(self, func: _Function) -> _Function:
        @functools.wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


def _module_autocast(self: torch.nn.Module, enabled: bool = True) -> None:
    """Cast the operations of this module and of everything in it by the policy of the options, or exclude them."""
    object.__setattr__(self, _FLAG, bool(enabled))


torch.nn.Module.autocast = _module_autocast  # type: ignore[attr-defined]


def enter_module(module: torch.nn.Module) -> bool:
    """Open the region that ``module.autocast()`` asked for; tells whether there is one."""
    enabled = module.__dict__.get(_FLAG)
    if enabled is None:
        return False
    _open(enabled)
    return True


def leave_module() -> None:
    """Close what :func:`enter_module` opened."""
    _close()
