"""A private module of the original whose class libraries derive from; see ``poptorch.compat``."""

from poptorch.compat.args_parser import ArgsParser

__all__ = ["ArgsParser"]
