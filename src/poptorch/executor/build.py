"""A compiled model and where its native code comes from."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch.compiler.device_program import Interface
from poptorch.executable.executable import Executable
from poptorch.host.store.code_store import Pieces


@dataclass
class Build:
    """The executable, which is replaced when native code arrives, and the store of that code."""

    executable: Executable
    store: Pieces

    @property
    def interface(self) -> Interface:
        """How the program is called with the user's own structures."""
        return self.executable.device.interface
