"""The compiled model as data: what IPUs run, and the code by which this host runs it."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.plan import Plan
from poptorch.executable.host_code import HostCode
from poptorch.program.program import Program
from poptorch.program.update import UpdateProgram


@dataclass(frozen=True)
class Executable:
    """Everything the engine needs; never changed, only replaced by another one with other code."""

    device: DeviceProgram
    code: HostCode

    @property
    def program(self) -> Program:
        """One micro-batch as IPUs run it."""
        return self.device.program

    @property
    def update(self) -> UpdateProgram | None:
        """The update that this process does."""
        return self.device.local_update

    @property
    def plan(self) -> Plan:
        return self.device.plan
