"""The code that this host runs for a device program. One object holds all of it, and is replaced as a whole."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from poptorch.compiler.passes.stages import Edge, StageProgram
from poptorch.compiler.passes.writes import Carried
from poptorch.executable.groups import HostLoop
from poptorch.executable.host_program import HostProgram
from poptorch.libraries.choice import MKL_ALONE, Libraries
from poptorch.program.graphs import acts_in_order
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role

Runner = Callable[..., Sequence[Any]]


class Code:
    """A function of the host, ready to run. What is set once stays as it is.

    >>> code = Code.when_needed(lambda: Code(lambda x: [2 * x], "twice"))
    >>> code.run(3), code.source
    ([6], 'twice')
    """

    run: Runner
    source: str
    """What runs, for people: straight-line Python, or the steps of the program."""

    program: HostProgram | None
    """What runs, as data; ``None`` for what this process does not run."""

    def __init__(self, run: Runner, source: str, program: HostProgram | None = None) -> None:
        vars(self).update(run=run, source=source, program=program)

    @staticmethod
    def when_needed(make: Callable[[], Code]) -> Code:
        """Code that is made when something of it is asked for: much is never run, because other code does more."""
        code = Code.__new__(Code)
        vars(code).update(_make=make, _lock=threading.RLock())
        return code

    def __getattr__(self, name: str) -> Any:
        """Asked for what is not there: make it, if it can be made."""
        if name not in ("run", "source", "program"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with vars(self)["_lock"]:
            if name not in vars(self):
                vars(self).update(vars(vars(self).pop("_make")()))
        return vars(self)[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __str__(self) -> str:
        return self.source if self.program is None else str(self.program)


def _elsewhere(*arguments: object) -> tuple[torch.Tensor, ...]:
    raise AssertionError("another process runs this stage")


ELSEWHERE = Code(_elsewhere, "# another process runs this stage")
"""The code of a stage that this process does not run."""


@dataclass(frozen=True)
class HostStage:
    """One stage of the plan as the host computes it.

    ``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs``, for one group of micro-batches. If
    it has buckets, ``run`` takes one argument more: ``hand(bucket, gradients)``.
    """

    description: StageProgram
    code: Code = field(repr=False)
    buckets: tuple[tuple[str, ...], ...] = ()
    """The gradients that the code hands out as soon as they are final, in this order, instead of returning them."""

    @property
    def program(self) -> Program:
        """The graph that the code was made from."""
        return self.description.program

    @property
    def parameters(self) -> list[str]:
        """Names of the weights that it reads, in the order of its arguments."""
        return [p.name for p in self.program.ports_of(Role.PARAMETER)]

    @property
    def buffers(self) -> list[str]:
        """Names of the buffers that it uses, in the order of its arguments."""
        return [p.name for p in self.program.ports_of(Role.BUFFER)]

    @property
    def gradients(self) -> tuple[tuple[str, ...], ...]:
        """The gradients that come together, in the order in which they come; none from a stage that runs elsewhere."""
        if self.code is ELSEWHERE:
            return ()
        return self.buckets or ((tuple(self.description.gradients),) if self.description.gradients else ())

    def positions_of(self, kind: OutputKind) -> range:
        """Where the outputs of one kind are among those that the code returns."""
        at, gradients = self.program.positions_of(kind), self.program.positions_of(OutputKind.GRADIENT)
        if not self.buckets or at.start < gradients.start:
            return at
        if kind is OutputKind.GRADIENT:
            return range(at.start, at.start)
        return range(at.start - len(gradients), at.stop - len(gradients))

    @property
    def is_sequential(self) -> bool:
        """Whether the next micro-batch depends on what it leaves, or the user sees its effects in order."""
        return acts_in_order(self.program)


@dataclass(frozen=True)
class HostCode:
    """Everything that runs, and how much of it at a time."""

    program: Program
    """What the stages compute together: one micro-batch, or a group of several."""

    loop: HostLoop
    """The loop of the device program, with the size of the groups."""

    stages: tuple[HostStage, ...]
    """In an order in which they can run; a model in one part has one."""

    edges: tuple[Edge, ...]
    carried: tuple[Carried, ...]
    width: int
    """How many tasks are to run at once, given cores."""

    alone: bool
    """Whether one stage on one replica is everything: then there is nothing to schedule."""

    update: Code | None = None
    """``run(random, *weights, *gradients, *state, *hyper)``."""

    shards: tuple[Code, ...] = ()
    """The same for each shard of the update."""

    step: Code | None = None
    """A micro-batch and its update in one, where each micro-batch is followed by one: the gradients are not kept.

    ``run(parameters, buffers, constants, inputs, loss_scale, random, state_and_hyper) -> outputs``."""

    formats: Mapping[str, torch.memory_format] = field(default_factory=dict)
    """How ``step`` wants a parameter and its optimizer state to lie in memory, where not in rows."""

    libraries: Libraries = MKL_ALONE
    """What multiplies matrices."""

    native_after: int | None = None
    """After how many calls native code is to replace this; ``None``: never (again)."""

    log: tuple[str, ...] = ()
    """What was decided about the host, for people."""

    def __str__(self) -> str:
        return "\n".join(self._listing())

    @property
    def is_one_step(self) -> bool:
        """Whether a micro-batch and its update are one function, and there are no other processes to exchange with."""
        return self.step is not None and self.loop.replicas_of_job == self.loop.replicas

    def prepare(self) -> None:
        """Make the code that runs, if it waits to be made: compiling takes time, and the first call should not."""
        codes = [self.step] if self.is_one_step else [*(stage.code for stage in self.stages), self.update, *self.shards]
        for code in codes:
            if code is not None:
                code.run  # noqa: B018  asking for it makes it

    def _listing(self) -> Iterator[str]:
        """What was decided, and each host program that runs: a step is all that does, if there is one."""
        yield f"host code: {self.width} {'tasks' if self.width > 1 else 'task'} at a time"
        for line in self.log:
            yield f"  {line}"
        if self.is_one_step:
            yield f"each micro-batch with its update:\n{self.step}"
            return
        for stage in self.stages:
            yield f"{stage.description.label if len(self.stages) > 1 else 'each micro-batch'}:\n{stage.code}"
        updates = self.shards or (() if self.update is None else (self.update,))
        for update in updates:
            yield f"after each round:\n{update}"

    @property
    def gradients(self) -> tuple[tuple[str, ...], ...]:
        """The gradients of all stages that come together, in the order in which other processes are sent them."""
        return tuple(bucket for stage in self.stages for bucket in stage.gradients)

    @property
    def micro_batch(self) -> Code:
        """The code of the first stage; of a model in one part, that is all of it."""
        return self.stages[0].code

    def format_of(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a parameter's shape as that parameter is to lie in memory: itself, where it lies so already."""
        chosen = self.formats.get(name)
        if chosen is None or tensor.ndim not in (4, 5):
            return tensor
        return tensor.contiguous(memory_format=chosen)
