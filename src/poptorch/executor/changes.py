"""A number that changes when the tensors of some model may have been replaced, frozen or unfrozen.

Assigning a parameter, a buffer or a module to a module registers it, and torch tells hooks of that.
"""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as torch_module


class Changes:
    """Counts what may have changed the tensors of any model."""

    def __init__(self) -> None:
        self.count = 0
        self._listening = False

    def note(self, *registered: Any) -> None:
        """Something was registered with a module, or a parameter frozen."""
        self.count += 1

    def listen(self) -> None:
        """Hear of registrations from now on."""
        if not self._listening:
            self._listening = True
            torch_module.register_module_parameter_registration_hook(self.note)
            torch_module.register_module_buffer_registration_hook(self.note)
            torch_module.register_module_module_registration_hook(self.note)


changes = Changes()
