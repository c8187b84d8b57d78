"""The device that a program runs on: which one the options ask for, and whether it is attached."""

from __future__ import annotations

from poptorch import environment, launchers
from poptorch._logging import logger
from poptorch.compiler.request import is_offline, uses_ipu_model
from poptorch.devices import attachment, partition
from poptorch.errors import createPoptorchError
from poptorch.options import Options
from poptorch.placement import counting


def check_target(options: Options) -> None:
    """Refuse targets that do not go with other options."""
    uses_model, offline = uses_ipu_model(options), is_offline(options)
    if offline and uses_model:
        raise createPoptorchError("ConnectionType.Never is not supported for the IPU model")
    if offline and options.exists("ipu_id"):
        raise createPoptorchError("Offline compilation targeting a specific id not supported")
    if uses_model:
        environment.ipu_model_version()  # refuses a name that stands for nothing
    counts_cycles = bool(options._Popart.options.get("instrumentWithHardwareCycleCounter"))
    if counts_cycles and (uses_model or offline):
        raise createPoptorchError("Cycle count logging is only supported on actual IPU hardware.")
    if uses_model and options._Popart.options.get("enableEngineCaching"):
        logger.warning("enableExecutableCaching doesn't work with the IPU model")


def _choose_part(options: Options) -> None:
    """Use the part of a partition that connection files have for this process, if the options say which one it is."""
    distributed = options.Distributed
    if not distributed.ipuof_configs:
        numbered = distributed.processId != launchers.layout().process_id  # by the options, not by a launcher
        own = partition.file_of(distributed.processId) if numbered else None
        if own is not None:
            environment.IPUOF_CONFIG_PATH.write(str(own))
        return
    file = distributed.getGcdConfigFile()
    assert file is not None or distributed.numProcesses == 1, (
        f"No IPUoF configuration file found for processId {distributed.processId} among "
        f"{', '.join(distributed.ipuof_configs.values())}: a partition needs one part for each process."
    )
    if file is not None:
        environment.IPUOF_CONFIG_PATH.write(file)


class Target:
    """The IPUs of one program; they are freed with this object at the latest."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._device: attachment.Device | None = None

    @property
    def is_attached(self) -> bool:
        """Whether the IPUs are reserved."""
        return self._device is not None

    def attach(self, ipus_per_replica: int) -> None:
        """Reserve the IPUs of the program."""
        options, simulated = self._options, uses_ipu_model(self._options)
        needed = counting.reserve_ipus(
            ipus_per_replica,
            options.replication_factor,
            auto_round=options.auto_round_num_ipus,
            hardware=not simulated,
        )
        if not simulated:
            _choose_part(options)
        if simulated or needed == 0:
            self._device = attachment.simulated(needed)
        elif options.exists("ipu_id"):
            chosen = options.ipu_id
            counting.check_selected_device(attachment.size_of(chosen), needed, chosen)
            self._device = attachment.acquire_id(chosen, self)
        else:
            self._device = attachment.acquire(needed, self)

    def detach(self) -> None:
        """Free the IPUs, if they are reserved."""
        if self._device is not None:
            self._device.release()
        self._device = None
