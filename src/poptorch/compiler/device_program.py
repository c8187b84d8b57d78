"""What IPUs run: the program of a micro-batch, the update, their division over IPUs, and where tensors live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from poptorch.capture.arguments import ArgumentLayout, positions_of_same
from poptorch.capture.structure import Structure, TensorLeaf
from poptorch.compiler.memory import MemoryMap
from poptorch.compiler.passes.precision import GradientWatch
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.passes.stages import StageProgram
from poptorch.compiler.plan import Plan
from poptorch.compiler.portion import Blocks, Portion
from poptorch.compiler.settings import Settings
from poptorch.errors import createPoptorchError
from poptorch.program.loop import Loop
from poptorch.program.program import Program
from poptorch.program.update import UpdateProgram


@dataclass(frozen=True)
class Interface:
    """How a device program is called with the user's own structures."""

    layout: ArgumentLayout
    output_structure: Structure
    result_positions: tuple[int, ...]
    """For each tensor of the output structure, its position among the device results, or -1 for a host constant."""

    host_results: Mapping[int, torch.Tensor]
    """Results that are constant, by position in the output structure."""

    written_inputs: tuple[int, ...]
    """Positions of the inputs that ``forward`` changes in place."""

    same_inputs: tuple[int, ...]
    """For each input, the position of the first one that was the same tensor when the program was compiled."""

    optimizer: Any = None
    """Description of the optimizer, restricted to the parameters that a gradient reaches."""

    written_state: frozenset[str] = frozenset()
    """Names of the buffers and parameters that ``forward`` itself writes: not the running statistics of its layers."""

    def check_same(self, given: Sequence[torch.Tensor]) -> None:
        """Refuse arguments that share memory in another way than those of the compilation, if one is written to."""
        same = positions_of_same(given)
        for index in self.written_inputs:
            for other, (compiled, now) in enumerate(zip(self.same_inputs, same, strict=True)):
                if (compiled == self.same_inputs[index]) != (now == same[index]):
                    first, second = self.layout.specs[index].path, self.layout.specs[other].path
                    before = "one tensor" if compiled == self.same_inputs[index] else "different tensors"
                    raise createPoptorchError(
                        f"forward() changes {first} in place, and the program was compiled with {before} for {first} "
                        f"and {second}. Call it that way, or wrap the model once more for the other way."
                    )

    @cached_property
    def returns_one_tensor(self) -> bool:
        """Whether ``forward`` returns a tensor, not a structure of some."""
        return isinstance(self.output_structure, TensorLeaf)


@dataclass(frozen=True)
class DeviceProgram:
    """Everything that is known of a model on IPUs before anything is decided about the host.

    Data, without weights: the IPU Model reads it, the host compiles it, a file describes it.
    """

    program: Program
    """One micro-batch, forward and backward, with the recomputation that IPUs do."""

    update: UpdateProgram | None
    plan: Plan
    loop: Loop
    memory: MemoryMap
    settings: Settings
    undivided: Program = field(repr=False)
    """The program before recomputation and division: where a host that computes it in another way starts."""

    recomputation: Recomputation
    ipus_per_replica: int
    watch: GradientWatch
    """What automatic loss scaling counts."""

    interface: Interface = field(repr=False)
    portion: Portion | None = None
    """What this process runs, where several share each replica; the rest of this object is the same in all of them."""

    @property
    def blocks(self) -> Blocks | None:
        """Which process runs what, where several share each replica."""
        return None if self.portion is None else self.portion.blocks

    @property
    def local_update(self) -> UpdateProgram | None:
        """The update that this process does."""
        return self.update if self.portion is None else self.portion.update

    @property
    def local_optimizer(self) -> Any:
        """The description of the optimizer for the parameters that this process updates."""
        return self.interface.optimizer if self.portion is None else self.portion.optimizer

    def runs(self, stage: StageProgram) -> bool:
        """Whether this process runs a stage."""
        return self.portion is None or self.portion.blocks.is_own(stage)

    def uses(self, name: str) -> bool:
        """Whether this process needs a parameter or buffer."""
        return self.portion is None or self.portion.blocks.own in self.portion.blocks.users.get(name, ())

    @property
    def local_ipus(self) -> int:
        """The IPUs of each replica that this process needs."""
        return self.ipus_per_replica if self.portion is None else self.ipus_per_replica // self.portion.blocks.count

    @property
    def accumulates(self) -> bool:
        """Whether an update combines the gradients of several micro-batches."""
        return self.update is not None and self.loop.micro_batches_per_update > 1

    @property
    def needs_device(self) -> bool:
        """Whether there is anything to run at all."""
        return any(True for _ in self.program.operations()) or self.update is not None
