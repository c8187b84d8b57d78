"""Schedules: who runs which micro-batch of which part of the model, and when, as pure functions.

Every schedule is a generator over :class:`Tick`; :func:`draw` shows it, :func:`check` proves it.
"""

from poptorch.runtime.schedule.checking import check, idle_share, peak_stash
from poptorch.runtime.schedule.clock import ScheduleError, data_dependencies
from poptorch.runtime.schedule.drawing import draw, read
from poptorch.runtime.schedule.job import Job, Kind, Tick
from poptorch.runtime.schedule.one_f_one_b import one_f_one_b
from poptorch.runtime.schedule.parallel_phased import parallel_phased
from poptorch.runtime.schedule.pipelined_inference import pipelined_inference
from poptorch.runtime.schedule.serial_phased import serial_phased
from poptorch.runtime.schedule.sharded import sharded

__all__ = [
    "Job",
    "Kind",
    "ScheduleError",
    "Tick",
    "check",
    "data_dependencies",
    "draw",
    "idle_share",
    "one_f_one_b",
    "parallel_phased",
    "peak_stash",
    "pipelined_inference",
    "read",
    "serial_phased",
    "sharded",
]
