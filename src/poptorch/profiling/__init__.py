"""Timing the parts of a program: named channels of trace points."""

from poptorch.profiling.channel import Channel, Record

__all__ = ["Channel", "Record"]
