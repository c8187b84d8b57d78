"""``IPUAccelerator``: how many IPUs a trainer of Lightning asks for."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator

from poptorch.devices.system import ipuHardwareIsAvailable
from poptorch.errors import createPoptorchError


class IPUAccelerator(Accelerator):
    """Virtual IPUs. ``devices`` is their number; data and the module's own weights stay on the host."""

    def setup_device(self, device: torch.device) -> None:
        """IPUs are reserved when a model is compiled."""

    def teardown(self) -> None:
        """The strategy frees the IPUs."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Nothing is measured: see the IPU Model for cycles and memory."""
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """The number of IPUs."""
        try:
            count = int(devices)
        except (TypeError, ValueError):
            count = 0
        if count < 1 or isinstance(devices, float):
            raise createPoptorchError(
                f"Trainer(accelerator='ipu', devices={devices!r}): devices is the number of IPUs. Choose single ones "
                "with Options.useIpuId()."
            )
        return count

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """One entry for each IPU."""
        return [torch.device("cpu")] * int(devices)

    @staticmethod
    def auto_device_count() -> int:
        """One IPU, unless the program says otherwise."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Whether the virtual system of this machine has IPUs."""
        return ipuHardwareIsAvailable()

    @staticmethod
    def name() -> str:
        """The name by which a trainer chooses it."""
        return "ipu"
