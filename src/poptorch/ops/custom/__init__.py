"""Custom operators: written in C++ or Python, found by domain, name and version."""

from poptorch.ops.custom.attributes import ATTR_PREFIX, accessAttributes, attributes_lists
from poptorch.ops.custom.build import buildCustomOp, includePath
from poptorch.ops.custom.call import custom_op
from poptorch.ops.custom.python_ops import registerCustomOp
from poptorch.ops.custom.registry import requirements

__all__ = [
    "ATTR_PREFIX",
    "accessAttributes",
    "attributes_lists",
    "buildCustomOp",
    "custom_op",
    "includePath",
    "registerCustomOp",
    "requirements",
]
