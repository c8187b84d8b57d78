"""Errors of running programs, in the user's own terms: which operation, of which module, from which line.

All of this happens after a failure. Interpreted code knows the operation of each of its lines. Native code, and code
for several micro-batches at once, does not: there the micro-batch is run again, one operation at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx

from poptorch import environment
from poptorch.errors import Error, IndexOutOfRange
from poptorch.executor.replay import Replay
from poptorch.executor.tracebacks import has_users_frames
from poptorch.host.interpret.lines import FailedOperation, described, failed_operation
from poptorch.ops.effects import calls_host
from poptorch.ops.index_ranges import bound_arguments, index_ranges
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.graphs import is_view
from poptorch.program.loop import Loop
from poptorch.program.program import Port, Role, type_text
from poptorch.runtime.engine import Engine
from poptorch.runtime.failures import FailedJob, job_of, note_job

_SHOWN = 5
"""How many wrong elements a message lists."""


def explained(error: Exception, engine: Engine, inputs: Sequence[torch.Tensor]) -> Exception:
    """The error to raise for one that came up while a call was running."""
    job = job_of(error)
    if job is None or isinstance(error, Error | IndexOutOfRange) or has_users_frames(error):
        return error  # it says where it comes from, or comes from a function of the user
    found = _Finding(error, failed_operation(error), job)
    if found.operation is not None and calls_host(found.operation.node):
        return error
    if found.operation is None or engine.executable.code.loop.group_size > 1:
        found = _found_again(engine, inputs, found) or found
    loop = engine.executable.device.loop
    text = _sentence(str(found.error)) + " " + _where(found, loop)
    return _rewritten(error, found.error, text)


def raise_explained(error: Exception, engine: Engine, inputs: Sequence[torch.Tensor]) -> NoReturn:
    """Raise what :func:`explained` makes of an error; inside the handler of that error."""
    new = explained(error, engine, inputs)
    job = job_of(error)
    if job is not None:
        note_job(new, job)
    if new is error:
        raise error
    raise new from (error if environment.FULL_TRACEBACK.read() else None)


@dataclass(frozen=True)
class _Finding:
    """What is known about a failure."""

    error: Exception
    operation: FailedOperation | None
    job: FailedJob


def _rewritten(error: Exception, cause: Exception, text: str) -> Exception:
    """An error with another text. Handlers of ``error`` catch it as well."""
    if isinstance(cause, IndexError):
        return IndexOutOfRange(text)
    error.args = (text,)
    return error


def _found_again(engine: Engine, inputs: Sequence[torch.Tensor], found: _Finding) -> _Finding | None:
    """The failure of the same micro-batches one by one and operation by operation, if they fail again."""
    settings, loop = engine.executable.device.settings, engine.executable.device.loop
    if settings.synthetic_data:
        return None
    replay = Replay(engine, inputs)
    if replay.has_effects:
        return None
    first = engine.random.position
    if engine.executable.update is not None:  # the position has moved with every update of this call
        first -= found.job.members[0].iteration * loop.gradient_accumulation
    for member in found.job.members:
        try:
            replay.run(member, first + loop.position(member))
        except Exception as error:  # noqa: BLE001  (whatever an operation may raise)
            operation = failed_operation(error)
            if operation is not None:
                return _Finding(error, operation, FailedJob((member,), found.job.label))
    return None


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def _where(found: _Finding, loop: Loop) -> str:
    """Sentences about the operation, its operands and the micro-batch."""
    sentences = []
    if found.operation is not None:
        sentences.append(f"In {described(found.operation.node)}.")
        sentences += _values(found.operation)
    sentences.append(_micro_batches(found.job, loop))
    return " ".join(sentences)


def _micro_batches(job: FailedJob, loop: Loop) -> str:
    first, last = job.members[0], job.members[-1]
    numbers = str(loop.position(first)) if first == last else f"{loop.position(first)} to {loop.position(last)}"
    parts = [f"Micro-batch{'' if first == last else 'es'} {numbers} of the call"]
    if loop.replicas > 1:
        parts.append(f"replica {loop.global_replica(first.replica)}")
    if job.label:
        parts.append(job.label)
    return ", ".join(parts) + "."


def _values(failed: FailedOperation) -> Iterator[str]:
    """What there is to say about the operands: the indices that are out of range, or the types of all."""
    node = failed.node

    def value(operand: fx.Node) -> Any:
        return failed.operands.get(operand, operand.meta.get("val"))

    arguments = bound_arguments(node.target, node.args, node.kwargs)
    values = {name: fx.map_arg(argument, value) for name, argument in arguments.items()}
    said = False
    for argument, allowed in index_ranges(traits_of(node).name, values).items():
        operand = _operand(arguments, argument)
        given = failed.operands.get(operand) if operand is not None else None
        wrong = allowed.violations(given) if isinstance(given, torch.Tensor) else []
        if wrong and operand is not None:
            shown = ", ".join(f"{number} at {list(at)}" for at, number in wrong[:_SHOWN])
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            said = True
            yield f"{_called(argument, operand, failed.ports)} must be {allowed}, but there is {shown}{more}."
    if not said and traits_of(node).kind is not OpKind.CONTROL:
        tensors = [(name, v) for name, v in values.items() if isinstance(v, torch.Tensor)]
        if tensors:
            yield "Operands: " + ", ".join(f"{name} {type_text(v.dtype, v.shape)}" for name, v in tensors) + "."


def _operand(arguments: dict[str, Any], name: str) -> fx.Node | None:
    plain, _, place = name.partition("[")
    found = arguments[plain]
    found = found[int(place.rstrip("]"))] if place else found
    return found if isinstance(found, fx.Node) else None


def _called(argument: str, operand: fx.Node, ports: Any) -> str:
    """An operand by the name that the user has for it, if it is an argument of ``forward`` or a view of one."""
    root = operand
    while root not in ports and isinstance(first := (root.args or (None,))[0], fx.Node) and _keeps_values(root):
        root = first
    port: Port | None = ports.get(root)
    if port is None or port.name.startswith("edge "):
        return f"The values of {argument}"
    kind = {Role.INPUT: "the input"}.get(port.role, f"the {port.role.value}")
    return f"The values of {argument}, from {kind} {port.name!r},"


def _keeps_values(node: fx.Node) -> bool:
    return is_view(node) or traits_of(node).kind is OpKind.COPY
