"""The operations that plain PyTorch does not have."""

from poptorch.ops.control_flow import cond, for_loop
from poptorch.ops.ctc import ctc_beam_search_decoder
from poptorch.ops.custom import (
    ATTR_PREFIX,
    accessAttributes,
    attributes_lists,
    buildCustomOp,
    custom_op,
    includePath,
    registerCustomOp,
)
from poptorch.ops.hints import (
    nop,
    recomputationCheckpoint,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch.ops.host import CPU
from poptorch.ops.loss import identity_loss
from poptorch.ops.matmul import serializedMatMul
from poptorch.ops.multi_conv import MultiConv
from poptorch.ops.point_cloud import fps, nearest
from poptorch.ops.printing import ipu_print_tensor
from poptorch.ops.scopes import Attribute, NameScope
from poptorch.ops.slicing import dynamic_slice, dynamic_update
from poptorch.ops.tensor_id import getIpuTensorId

__all__ = [
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
    "recomputationCheckpoint",
    "registerCustomOp",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
