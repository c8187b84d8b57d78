"""The first operation of a call that makes a NaN or an infinity out of ordinary numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from poptorch.compiler.passes.anchors import UPDATED
from poptorch.debug.models import prepared
from poptorch.executor.replay import Replay, UpdateReplay
from poptorch.executor.session import Session
from poptorch.host.interpret.exceptions import check_of
from poptorch.host.interpret.lines import described
from poptorch.program.loop import MicroBatch
from poptorch.program.naming import value_labels
from poptorch.program.opinfo import SourceLocation, Sweep, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import type_text
from poptorch.program.update import flat_arguments


@dataclass(frozen=True)
class NonFinite:
    """Where the first value came up that is no ordinary number."""

    what: str
    """What went wrong: ``overflow``, ``division by zero``, …; or that a tensor was not finite from the start."""

    name: str
    """The name of the value, as ``getTensorNames()`` has it."""

    operation: str = ""
    """In words, with its module and its line; empty for what was not finite before the call."""

    module: str = ""
    source: SourceLocation | None = None
    """The line of ``forward``."""

    parameter: str = ""
    """The parameter whose gradients are added, or whose weight and optimizer state are updated, in the last step."""

    backward: bool = False
    micro_batch: MicroBatch | None = None
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The operands of the operation, by name."""

    output: torch.Tensor | None = None

    def __str__(self) -> str:
        where = f" in {self.operation}" if self.operation else ""
        lines = [f"{self.name}: {self.what}{where}"]
        if self.micro_batch is not None:
            at = self.micro_batch
            lines.append(f"  device iteration {at.iteration}, accumulation step {at.step}, replica {at.replica}")
        lines += [f"  input  {_summary(name, tensor)}" for name, tensor in self.inputs.items()]
        if self.output is not None:
            lines.append(f"  output {_summary(self.name, self.output)}")
        return "\n".join(lines)


def findNonFinite(model: Any, *args: Any, **kwargs: Any) -> NonFinite | None:
    """The first operation whose result has a NaN or an infinity that its operands do not have; ``None``: all is finite.

    ``model`` is a wrapped model, and the arguments are those of a call. Every micro-batch of the call is computed,
    forward and, for training, backward, one operation at a time. Then the gradients are added, and the weights and the
    optimizer's state are updated, on copies: the device keeps what it has. Inputs, weights and the optimizer's state
    are looked at first. Filling in infinities, as masks do, is no fault.

    >>> import poptorch
    >>> class Root(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.log(x - 1)
    >>> found = findNonFinite(poptorch.inferenceModel(Root()), torch.tensor([3.0, 0.5]))
    >>> found.what, found.name, found.inputs["Sub:0"].tolist()
    ('invalid operation (the result is not a number)', 'Log:0', [2.0, -0.5])
    >>> findNonFinite(poptorch.inferenceModel(Root()), torch.tensor([3.0, 2.0])) is None
    True
    """
    session, inputs = prepared(model, args, kwargs)
    for name, tensor in _given(session, inputs):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return NonFinite("not finite before the call", name, output=tensor)
    return _Search(session, inputs).run()


def _given(session: Session, inputs: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    engine = session.engine
    for spec, tensor in zip(session.executable.device.interface.layout.specs, inputs, strict=True):
        yield spec.path, tensor
    yield from engine.download().items()
    update = session.executable.update
    if update is not None and engine.optimizer_state:
        tensors = flat_arguments((), (), engine.optimizer_state, ())
        yield from ((kept.name, tensor) for kept, tensor in zip(update.state, tensors, strict=True))


class _Found(Exception):
    """Ends the search."""


class _Search:
    """Computes micro-batch after micro-batch until an operation makes something out of nothing."""

    def __init__(self, session: Session, inputs: list[torch.Tensor]) -> None:
        self._session = session
        self._replay = Replay(session.engine, inputs, self._look)
        program = self._replay.program
        self._labels = value_labels(program.operations())
        self._labels.update({node: port.name for node, port in program.placeholders()})
        self._checks = {node: check_of(node) for node in program.operations()}
        self._update = UpdateReplay(session.engine) if UpdateReplay.is_possible(session.engine) else None
        self._micro_batch = MicroBatch(0, 0, 0)
        self._found: NonFinite | None = None

    def run(self) -> NonFinite | None:
        loop, position = self._session.executable.device.loop, self._session.engine.random.position
        with self._session.wrapped.weights.unwatched():
            for micro_batch in loop.micro_batches():
                self._micro_batch = micro_batch
                try:
                    self._compute(micro_batch, position + loop.position(micro_batch))
                except _Found:
                    break
        return self._found

    def _compute(self, micro_batch: MicroBatch, position: int) -> None:
        """One micro-batch, and the update if it is the last one before it."""
        loop, update = self._session.executable.device.loop, self._update
        if update is None:
            self._replay.run(micro_batch, position)
            return
        outputs = self._replay.run(micro_batch, position, update.weights)
        places = self._replay.program.positions_of(OutputKind.GRADIENT)
        update.add(micro_batch, [outputs[place] for place in places])
        if micro_batch.step == loop.gradient_accumulation - 1 and micro_batch.replica == loop.replicas - 1:
            self._look_at_update(update)

    def _look_at_update(self, update: UpdateReplay) -> None:
        """Add the gradients, update, and look at each parameter: first at its state, which its weight follows."""
        gradients = update.gradients()
        for name, gradient in gradients.items():
            self._check_held(name, f"Gradient___{name}", gradient, "the sum of the gradients", {})
        given = {name: gradient.clone() for name, gradient in gradients.items()}
        weights = {name: weight.clone() for name, weight in update.weights.items()}
        state = {tensor: value.clone() for tensor, value in update.state().items()}
        update.step(gradients)
        now = update.state()
        for name in given:
            own = {kept.name: value for kept, value in state.items() if kept.parameter == name}
            inputs = {f"Gradient___{name}": given[name], name: weights[name], **own}
            for kept, value in now.items():
                if kept.parameter == name:
                    self._check_held(name, kept.name, value, "the update of the optimizer's state", inputs)
            self._check_held(name, f"{UPDATED}{name}", update.weights[name], "the update of the weight", inputs)

    def _check_held(
        self, parameter: str, name: str, value: torch.Tensor, step: str, inputs: Mapping[str, torch.Tensor]
    ) -> None:
        if not value.is_floating_point() or bool(torch.isfinite(value).all()):
            return
        what = "the result is not a number" if bool(torch.isnan(value).any()) else "overflow"
        self._found = NonFinite(
            what=what,
            name=name,
            operation=f"{step} of parameter {parameter!r}",
            parameter=parameter,
            micro_batch=self._micro_batch,
            inputs=dict(inputs),
            output=value.clone(),
        )
        raise _Found

    def _look(self, node: fx.Node, result: Any, operands: Mapping[fx.Node, Any]) -> None:
        check = self._checks[node]
        if check is None:
            return
        arguments = (a for a in node.args if isinstance(a, (fx.Node, float, int, list, tuple)))
        given = tuple(fx.map_arg(argument, operands.get) for argument in arguments)
        what = check.fault(result, given)
        if what is None:
            return
        info = info_of(node)
        tensors = {self._labels[n]: value for n, value in operands.items() if isinstance(value, torch.Tensor)}
        self._found = NonFinite(
            what=what,
            name=self._labels[node],
            operation=described(node),
            module=info.scope.replace("/", "."),
            source=info.source,
            backward=info.sweep is Sweep.BACKWARD,
            micro_batch=self._micro_batch,
            inputs={name: tensor.clone() for name, tensor in tensors.items()},
            output=result.clone() if isinstance(result, torch.Tensor) else None,
        )
        raise _Found


def _summary(name: str, tensor: torch.Tensor) -> str:
    """Type, range and number of unusual elements in one line."""
    text = f"{name} {type_text(tensor.dtype, tensor.shape)}"
    if not tensor.is_floating_point():
        return text
    finite = tensor[torch.isfinite(tensor)].float()
    if finite.numel():
        text += f" from {finite.min().item():g} to {finite.max().item():g}"
    for what, count in (("NaN", torch.isnan(tensor).sum()), ("infinite", torch.isinf(tensor).sum())):
        if count:
            text += f", {int(count)} {what}"
    return text
