"""Annotations of the first releases: ``IPU`` (up to SDK 1.3), ``BeginPhase`` and the old ``Phase`` (until 1.4).

They select IPU, stage or phase by number. New code uses ``Block`` and ``BeginBlock``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import TracebackType
from typing import Any

import torch

from poptorch import ambient
from poptorch._logging import warn_once
from poptorch.placement.blocks import BlockMark, enter
from poptorch.placement.strategies import is_int, require


class IPU(torch.nn.Module):
    """Place a layer, or the operations of a scope, on one IPU, and everything after it too.

    Leaving the scope changes nothing: later layers stay on that IPU until another annotation is met.

    >>> layer = IPU(1, torch.nn.ReLU())
    >>> layer(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    >>> with IPU(0):
    ...     print(1 + 1)
    2
    """

    def __init__(self, ipu_id: int, layer_to_call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.ipu_id = ipu_id
        self.layer_to_call = layer_to_call
        self._mark = BlockMark(None, ipu_id)
        warn_once(
            "poptorch.IPU",
            "poptorch.IPU annotations are deprecated. Use poptorch.BeginBlock(layer, ipu_id=...) or "
            "`with poptorch.Block(ipu_id=...):` instead.",
        )

    def __enter__(self) -> IPU:
        self._mark.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The placement lasts until the next annotation."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Select the IPU, then call the layer."""
        if self.layer_to_call is None:
            raise TypeError(
                f"IPU({self.ipu_id}) has no layer to call: pass one as poptorch.IPU({self.ipu_id}, layer), "
                f"or use it as a scope: `with poptorch.IPU({self.ipu_id}):`."
            )
        self._mark.start()
        return self.layer_to_call(*args, **kwargs)


class IpuId(IntEnum):
    """Relative IPU numbers for ``BeginPhase`` and the old ``Phase``."""

    SameAsStage = -1
    SameAsPreviousStage = -2


class PhaseId(IntEnum):
    """Special phase numbers for ``BeginPhase`` and the old ``Phase``."""

    Disabled = -1


class _Numbers:
    """Stage, phase and IPU as the user gave them."""

    def __init__(self, stage_id: Any, phase_id: Any, ipu_id: Any) -> None:
        if stage_id is None:  # the oldest form, with an IPU and nothing else
            stage_id = ipu_id
        require(_is_index(stage_id), f"stage_id must be a positive integer, not {stage_id!r}.")
        require(
            _is_index(ipu_id) or isinstance(ipu_id, IpuId),
            f"ipu_id must be either a positive integer or a IpuId, not {ipu_id!r}.",
        )
        require(
            _is_index(phase_id) or phase_id == PhaseId.Disabled,
            f"phase_id must be either a positive integer or a PhaseId, not {phase_id!r}.",
        )
        self.stage, self.phase, self.ipu = stage_id, phase_id, ipu_id

    def start(self) -> None:
        """Select the placement in the running capture, if there is one."""
        context = ambient.current()
        if context is not None:
            enter(context, self._placement(context.placement or ambient.Placement()))

    def _placement(self, previous: ambient.Placement) -> ambient.Placement:
        relative = {IpuId.SameAsStage: self.stage, IpuId.SameAsPreviousStage: previous.ipu}
        ipu = relative[self.ipu] if isinstance(self.ipu, IpuId) else self.ipu
        phase = 0 if self.phase == PhaseId.Disabled else int(self.phase)
        return ambient.Placement(stage=self.stage, phase=phase, ipu=ipu)


class PhaseScope:
    """Select stage, phase and IPU by number; leaving the scope changes nothing.

    It was called ``Phase`` before SDK 1.4, and ``poptorch.Phase`` with numbers by keyword still makes it.

    >>> import poptorch
    >>> with poptorch.Phase(stage_id=1, ipu_id=IpuId.SameAsPreviousStage):
    ...     print(1 + 1)
    2
    """

    def __init__(
        self,
        stage_id: int | None = None,
        phase_id: int | PhaseId = PhaseId.Disabled,
        ipu_id: int | IpuId = IpuId.SameAsStage,
    ) -> None:
        self._numbers = _Numbers(stage_id, phase_id, ipu_id)

    def __enter__(self) -> PhaseScope:
        self._numbers.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The placement lasts until the next annotation."""


class BeginPhase(torch.nn.Module):
    """Select stage, phase and IPU by number before calling a layer.

    ``BeginPhase(1, layer)`` means stage 1 on IPU 1, in the oldest spelling (whose first argument was the IPU)
    as in the later one.

    >>> BeginPhase(1, torch.nn.ReLU(), ipu_id=IpuId.SameAsPreviousStage)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(
        self,
        stage_id: int | None = None,
        layer_to_call: Callable[..., Any] | None = None,
        phase_id: int | PhaseId = PhaseId.Disabled,
        ipu_id: int | IpuId = IpuId.SameAsStage,
    ) -> None:
        super().__init__()
        self._numbers = _Numbers(stage_id, phase_id, ipu_id)
        require(
            callable(layer_to_call),
            f"layer_to_call must be a module or another callable, not {layer_to_call!r}.",
        )
        self.stage_id = self._numbers.stage
        self.phase_id = phase_id
        self.ipu_id = ipu_id
        self.layer_to_call = layer_to_call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Select the placement, then call the layer."""
        self._numbers.start()
        assert self.layer_to_call is not None
        return self.layer_to_call(*args, **kwargs)


def _is_index(value: object) -> bool:
    return is_int(value) and value >= 0  # type: ignore[operator]
