"""The option groups, ``opts.Training`` and so on, and ``TensorLocationSettings``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from poptorch import launchers
from poptorch.options.connection_files import DEFAULT, connection_files
from poptorch.options.containers import OptionContainer
from poptorch.options.passthrough import _PopartOptions
from poptorch.options.setters import (
    DistributedSetters,
    JitSetters,
    PrecisionSetters,
    TensorLocationSetters,
    TensorLocationSettingsSetters,
    TrainingSetters,
)
from poptorch.options.table import keys_of, python_side_keys


class _TrainingOptions(TrainingSetters, OptionContainer):
    """How gradients are accumulated, combined and scaled."""

    _declared = keys_of("Training")

    def __init__(self, popart_options: _PopartOptions) -> None:
        self._popart = popart_options
        super().__init__()


class _PrecisionOptions(PrecisionSetters, OptionContainer):
    """Number formats: casting, partials, rounding, floating-point exceptions."""

    _declared = keys_of("Precision")

    def __init__(self, popart_options: _PopartOptions) -> None:
        self._popart = popart_options
        super().__init__()


class _TensorLocationOptions(TensorLocationSetters, OptionContainer):
    """Where weights, activations, optimizer state and accumulators live. Starts empty."""

    _declared = keys_of("TensorLocations")


class TensorLocationSettings(TensorLocationSettingsSetters, OptionContainer):
    """Where one kind of tensor lives; what is not set is left to the backend.

    >>> TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(4).toDict()
    {'onChip': 0, 'minElementsForOffChip': 4}
    """

    _declared = keys_of("TensorLocationSettings")


class _DistributedOptions(DistributedSetters, OptionContainer):
    """Which of how many processes this one is. Read from the environment of launchers at construction."""

    _declared = keys_of("Distributed")

    def __init__(self) -> None:
        super().__init__()
        self.configureProcessId(*launchers.layout())

    @property
    def processId(self) -> int:
        """The ID of this process."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """How many processes there are."""
        return self.num_distributed_processes

    hostId = processId
    """The name of :attr:`processId` before September 2020."""

    numHosts = numProcesses
    """The name of :attr:`numProcesses` before September 2020."""

    def IPUoFConfigFiles(self, files: str | Iterable[str]) -> Self:
        """Say by patterns which connection files describe the parts of a partition, one part for each process.

        Programs of 2020 do so. Compiling sets ``IPUOF_CONFIG_PATH`` to the file of this process. Without this call, a
        process finds its part as :mod:`poptorch.devices.partition` says.
        """
        self.set(ipuof_configs=connection_files(files))
        return self

    def getGcdConfigFile(self) -> str | None:
        """The connection file of this process, or ``None`` if there is none."""
        return (self.ipuof_configs or connection_files(DEFAULT)).get(self.processId)

    @property
    def ipuBlocks(self) -> int:
        """How many processes share each replica, each with its block of the replica's IPUs."""
        return int(self.processes_per_replica) if self.exists("processes_per_replica") else 1

    @property
    def ipuBlock(self) -> int:
        """Which block of the IPUs of a replica this process runs.

        >>> options = _DistributedOptions().configureProcessId(3, 4).processesPerReplica(2)
        >>> options.ipuBlock, options.dataPart, options.numDataParts
        (1, 1, 2)
        """
        return self.distributed_process_id % self.ipuBlocks

    @property
    def dataPart(self) -> int:
        """Which part of the data this process reads; processes that share replicas read the same one."""
        return self.distributed_process_id // self.ipuBlocks

    @property
    def numDataParts(self) -> int:
        """Into how many parts the data are divided."""
        return max(1, self.num_distributed_processes // self.ipuBlocks)


class _JitOptions(JitSetters, OptionContainer):
    """How a model's graph is captured."""

    _declared = keys_of("Jit")
    _python_side = python_side_keys("Jit")
