"""``horovod.torch`` over PopDist's own communication: see :mod:`popdist.horovod`."""

from popdist.horovod import *  # noqa: F403 - the same names, whatever they are
from popdist.horovod import __all__ as __all__
from popdist.horovod import __getattr__ as __getattr__
