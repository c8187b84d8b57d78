"""PyTorch programs written for Graphcore IPUs, running on any machine.

The public names of the package, nothing else; grouped by the room that owns them.
"""

# errors and logging
from poptorch._logging import logger, setLogLevel
from poptorch._version import __version__
from poptorch.errors import Error, RecoverableError, UnrecoverableError, createPoptorchError

# options and enums

# placement

# ops

# optimizers

# data

# executor
