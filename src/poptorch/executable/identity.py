"""What makes two executables the same: their programs and how these are repeated, not the weights."""

from __future__ import annotations

import dataclasses

from poptorch.compiler.plan import Plan
from poptorch.executable.executable import Executable
from poptorch.program.fingerprint import digest, program_digest, update_digest


def _pieces(plan: Plan) -> list[str]:
    return [program_digest(stage.program, exact=False) for stage in plan.device_stages.values()]


def identity(executable: Executable) -> dict[str, str]:
    """Digests of the parts of an executable, by the names that error messages use."""
    update, plan = executable.update, executable.plan
    # How many micro-batches a host computes at once is its own affair.
    loop = {name: str(value) for name, value in dataclasses.asdict(executable.loop).items() if name != "bundle"}
    types = {name: str(dtype) for name, dtype in executable.accumulator_types.items()}
    return {
        "model's graph": program_digest(executable.program, exact=False),
        "weight update": "" if update is None else digest([update_digest(update), types, executable.running_mean]),
        "division over IPUs": ""
        if plan is None
        else digest([plan.ordering.value, [] if plan.whole else _pieces(plan)]),
        "loop": digest(loop),
        "anchored tensors": digest([repr(a) for a in executable.anchors]),
        "replica groups": digest({name: repr(group) for name, group in executable.groups.items()}),
    }
