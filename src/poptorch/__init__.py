"""PyTorch programs written for Graphcore IPUs, running on any machine.

The public names of the package, nothing else; grouped by the room that owns them.
"""

from importlib import import_module as _import_module
import typing as _typing

# errors and logging
from poptorch._logging import logger, setLogLevel
from poptorch._version import __version__
from poptorch.errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from poptorch.startup import prepare_process as _prepare_process

# the process, the machine, and hooks of the user
from poptorch import poptorch_core, profiling
from poptorch.ambient import isRunningOnIpu
from poptorch.arg_parsers import ICustomArgParser, registerCustomArgParser, registerGeometricCustomArgParsers
from poptorch.hooks import registerPostCompileHook, registerPreCompileHook
from poptorch.printing import module_repr, print as print
from poptorch.devices.system import hasMLIRSupportOnPlatform, ipuHardwareIsAvailable, ipuHardwareVersion

# options and enums
from poptorch import autocasting, enums, options
from poptorch.autocasting import autocast
from poptorch.enums import (
    AutoStage,
    CommGroupType,
    Compiler,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from poptorch.options import ConfigFileError, Options, TensorLocationSettings

# placement
from poptorch.placement import (
    IPU,
    BeginBlock,
    BeginPhase,
    Block,
    BlockFunction,
    BlockId,
    IpuId,
    LegacyBeginBlockFn,
    ParallelPhasedExecution,
    Phase,
    PhaseId,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    removeBlocks,
)

# ops
from poptorch import ops
from poptorch.ops import (
    ATTR_PREFIX,
    CPU,
    Attribute,
    MultiConv,
    NameScope,
    accessAttributes,
    attributes_lists,
    buildCustomOp,
    cond,
    ctc_beam_search_decoder,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    getIpuTensorId,
    identity_loss,
    includePath,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    registerCustomOp,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)

# optimizers
from poptorch import optim

# data
from poptorch.data import AsynchronousDataAccessor, DataLoader

# private names of the original that libraries use without importing their modules
from poptorch import _args_parser, _utils
from poptorch.compat.torch_ops import register as _register_torch_ops

# What compiles and runs models is loaded when a program first asks for it: it is two thirds of the package, and worker
# processes of data loaders, command lines and launchers never do.
if _typing.TYPE_CHECKING:
    # executor
    from poptorch.executor.executor import PoplarExecutor
    from poptorch.executor.ownership import tensorsOfProcess
    from poptorch.executor.wrapping import inferenceModel, load, trainingModel
    from poptorch import _impl, _poplar_executor, debug, distributed, experimental

    # the IPU Model
    from poptorch import ipu_model, report
    from poptorch.ipu_model.pipelining import autoPipeline


# What ``from poptorch import *`` brings, and what type checkers take for public. Not ``print``: it would hide Python's.
__all__ = [
    # errors and logging
    "Error",
    "RecoverableError",
    "UnrecoverableError",
    "__version__",
    "createPoptorchError",
    "logger",
    "setLogLevel",
    # the process, the machine, and hooks of the user
    "ICustomArgParser",
    "hasMLIRSupportOnPlatform",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isRunningOnIpu",
    "module_repr",
    "poptorch_core",
    "profiling",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
    "registerPostCompileHook",
    "registerPreCompileHook",
    # options and enums
    "AutoStage",
    "CommGroupType",
    "Compiler",
    "ConfigFileError",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "TensorLocationSettings",
    "VariableRetrievalMode",
    "autocast",
    "autocasting",
    "enums",
    "options",
    # placement
    "BeginBlock",
    "BeginPhase",
    "Block",
    "BlockFunction",
    "BlockId",
    "IPU",
    "IpuId",
    "LegacyBeginBlockFn",
    "ParallelPhasedExecution",
    "Phase",
    "PhaseId",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "removeBlocks",
    # ops
    "ATTR_PREFIX",
    "Attribute",
    "CPU",
    "MultiConv",
    "NameScope",
    "accessAttributes",
    "attributes_lists",
    "buildCustomOp",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "includePath",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "ops",
    "recomputationCheckpoint",
    "registerCustomOp",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    # optimizers
    "optim",
    # data
    "AsynchronousDataAccessor",
    "DataLoader",
    # executor
    "PoplarExecutor",
    "debug",
    "distributed",
    "experimental",
    "inferenceModel",
    "load",
    "tensorsOfProcess",
    "trainingModel",
    # the IPU Model
    "autoPipeline",
    "ipu_model",
    "report",
]

_LOADED_LATE = {
    "PoplarExecutor": "poptorch.executor.executor",
    "inferenceModel": "poptorch.executor.wrapping",
    "load": "poptorch.executor.wrapping",
    "tensorsOfProcess": "poptorch.executor.ownership",
    "trainingModel": "poptorch.executor.wrapping",
    "_impl": "poptorch._impl",
    "_poplar_executor": "poptorch._poplar_executor",
    "debug": "poptorch.debug",
    "distributed": "poptorch.distributed",
    "experimental": "poptorch.experimental",
    "ipu_model": "poptorch.ipu_model",
    "report": "poptorch.report",
    "autoPipeline": "poptorch.ipu_model.pipelining",
}


if not _typing.TYPE_CHECKING:  # type checkers see the imports above, and so find names that do not exist

    def __getattr__(name: str) -> object:
        """Names that are loaded at first use, and names of earlier releases: these log what to write instead."""
        if name in _LOADED_LATE:
            module = _import_module(_LOADED_LATE[name])
            found = getattr(module, name, module)
            globals()[name] = found
            return found
        if name in enums.DEPRECATED:
            return enums.deprecated_name(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_LATE})


_prepare_process()
_register_torch_ops()
registerGeometricCustomArgParsers()
