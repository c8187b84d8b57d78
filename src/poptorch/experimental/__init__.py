"""Functions and blocks of code, instead of modules, compiled for IPUs.

``context`` has ``IPUContext``, for functions; ``scope`` has ``IPUScope``, for the body of a ``with`` statement. Both
are a module to the rest of the road: ``function`` makes one of a function and of the arguments that are no tensors
(``arguments``), and ``optimizers`` lets the optimizers that the code uses work on the device. ``compiled`` owns the
compiled program and the state that lives on the device between calls.
"""

from poptorch.experimental.context import IPUContext
from poptorch.experimental.scope import IPUScope

__all__ = ["IPUContext", "IPUScope"]
