"""What makes two executables the same: their programs and how these are repeated, not the weights."""

from __future__ import annotations

import dataclasses

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.plan import Plan
from poptorch.program.fingerprint import digest, program_digest, update_digest
from poptorch.program.loop import Loop
from poptorch.program.update import UpdateProgram


def identity(device: DeviceProgram) -> dict[str, str]:
    """Digests of the parts of a device program, by the names that error messages use."""
    return {
        "model's graph": program_digest(device.program, exact=False),
        "weight update": "" if device.update is None else _update(device.update),
        "division over IPUs": _division(device.plan),
        "loop": loop_identity(device.loop),
        "anchored tensors": digest([repr(a) for a in device.settings.anchors]),
        "replica groups": digest({name: repr(group) for name, group in device.settings.groups.items()}),
    }


def loop_identity(loop: Loop) -> str:
    """The part of the identity that says how the program is repeated."""
    # Processes that share the work run the same program, each on replicas of its own.
    others = ("first_replica", "all_replicas")
    return digest({name: str(value) for name, value in dataclasses.asdict(loop).items() if name not in others})


def _update(update: UpdateProgram) -> str:
    types = {name: str(dtype) for name, dtype in update.accumulators.items()}
    return digest([update_digest(update), types, update.running_mean])


def _division(plan: Plan) -> str:
    stages = [] if plan.whole else [program_digest(stage.program, exact=False) for stage in plan.stages]
    return digest([plan.ordering.value, stages])
