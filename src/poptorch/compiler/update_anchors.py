"""Names for what the weight update leaves on the device: updated weights, the optimizer's state, its numbers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

from poptorch.compiler.passes.anchors import TRACED, UPDATED
from poptorch.errors import UnknownTensorError, misuse
from poptorch.optim.spec import OptimizerSpec
from poptorch.program.anchors import SPECIFIC, Anchor, Held
from poptorch.program.update import UpdateProgram

_STATE = re.compile(r"(Accl\d?|Step)___(.+?)(_nesterovGrad)?")


def classify(
    long_name: str, parameters: Collection[str], spec: OptimizerSpec | None
) -> tuple[Held, str] | tuple[None, str]:
    """What kind of held value a name means, and its name without a prefix; ``None`` for values of a micro-batch.

    >>> classify("UpdatedVar___model.fc.bias", ["fc.bias"], None)
    (<Held.WEIGHT: 'weight'>, 'fc.bias')
    >>> classify("Accl1___fc.bias", ["fc.bias"], None)
    (<Held.STATE: 'state'>, 'Accl1___fc.bias')
    >>> classify("fc/MatMul:0", ["fc.bias"], None)
    (None, 'fc/MatMul:0')
    """
    if long_name.startswith(UPDATED):
        parameter = _parameter(long_name.removeprefix(UPDATED), parameters)
        if parameter is not None:
            return Held.WEIGHT, parameter
    found = _STATE.fullmatch(long_name)
    parameter = _parameter(found[2], parameters) if found is not None else None
    if found is not None and parameter is not None:
        return Held.STATE, f"{found[1]}___{parameter}{found[3] or ''}"
    scalar, specific, name = long_name.partition(SPECIFIC)
    if spec is not None and any(scalar in group for group in spec.hyper()):
        parameter = _parameter(name, parameters)
        if not specific:
            return Held.SCALAR, scalar
        if parameter is not None:
            return Held.SCALAR, f"{scalar}{SPECIFIC}{parameter}"
    return None, long_name


def _parameter(name: str, parameters: Collection[str]) -> str | None:
    return next((p for p in (name, name.removeprefix(TRACED)) if p in parameters), None)


def _kept(update: UpdateProgram, spec: OptimizerSpec) -> list[str]:
    """The names of the optimizer's state, and of the numbers that steer the update, each also for each parameter."""
    names = [tensor.name for tensor in update.state]
    for group, parameters in zip(spec.hyper(), update.parameters, strict=True):
        for scalar in sorted(group):
            names += [scalar, *(f"{scalar}{SPECIFIC}{parameter}" for parameter in parameters)]
    return list(dict.fromkeys(names))


def held_names(update: UpdateProgram, spec: OptimizerSpec, *, traced: bool) -> list[str]:
    """Every name of a held value; parameters with the prefix that they have in a traced graph, if asked for."""

    def spelled(name: str) -> str:
        head, separator, parameter = name.rpartition("___")
        return f"{head}{separator}{TRACED if traced and separator else ''}{parameter}"

    weights = [f"{UPDATED}{name}" for name in update.names]
    plain = [*weights, *_kept(update, spec)]
    extra = [] if traced else [f"{UPDATED}{TRACED}{name}" for name in update.names]
    return [*map(spelled, plain), *extra]


def check_held(anchors: Sequence[Anchor], update: UpdateProgram | None, spec: OptimizerSpec | None) -> None:
    """Refuse anchors of state and numbers that this update does not have."""
    known = _kept(update, spec) if update is not None and spec is not None else []
    for anchor in anchors:
        if anchor.held in (Held.STATE, Held.SCALAR) and anchor.name not in known:
            close = difflib.get_close_matches(anchor.name, known, n=3)
            hint = f" Did you mean one of {close}?" if close else ""
            raise misuse(
                UnknownTensorError,
                f"Cannot anchor {anchor.long_name!r}: the optimizer of the compiled model keeps nothing of this "
                f"name.{hint} getTensorNames() of a compiled model lists all names.",
            )
