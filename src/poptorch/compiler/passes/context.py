"""What passes know beside the Program, and what they find out for those who come after them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from poptorch.compiler.passes.precision import GradientWatch
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.passes.slots import Division, SlotPartition
from poptorch.compiler.passes.writes import Carried


@dataclass(frozen=True)
class PassSettings:
    """What options and optimizer ask of the passes. Without any, the program stays in one part and as it is."""

    expects_host_results: bool = False
    """Whether the user knows that constant results do not come from the device."""

    returns_old_statistics: bool = False
    """Whether running statistics are read as they were before the call."""

    product_partials: str | None = None
    """Type of the partial sums of matrix products, if the user chose one."""

    convolution_partials: str | None = None
    anchors: tuple[str, ...] = ()
    """Names of inner values to return."""

    loss_scaling_edge: float | None = None
    """Magnitude from which on automatic loss scaling takes a gradient for large; ``None``: it is off."""

    division: Division = Division.SHARDS
    """What the parts of the model are."""

    recomputation: Recomputation = Recomputation.OFF


@dataclass
class Context:
    """The settings of one lowering, and the facts that its passes found."""

    settings: PassSettings = field(default_factory=PassSettings)
    host_results: dict[int, torch.Tensor] = field(default_factory=dict)
    """Results that are constant, by their position among the user's results."""

    watch: GradientWatch = field(default_factory=GradientWatch)
    """What automatic loss scaling counts."""

    partition: SlotPartition | None = None
    """The parts of the model, as soon as they are known."""

    carried: list[Carried] = field(default_factory=list)
    """Buffers that one slot reads and a later one writes."""

    summaries: dict[str, str] = field(default_factory=dict)
    """What each pass said."""

    @property
    def divided(self) -> SlotPartition:
        """The parts of the model, which are known once slots are assigned."""
        assert self.partition is not None, "slots are not assigned yet"
        return self.partition


__all__ = ["Context", "PassSettings"]
