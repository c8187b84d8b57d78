"""The name of the original's native module; programs call the getters through it, too."""

from popdist import *  # noqa: F403 - the same names, whatever they are
from popdist import __all__ as __all__
