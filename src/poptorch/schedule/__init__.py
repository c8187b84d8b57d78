"""Schedules: who runs which micro-batch of which part of the model, and when, as pure functions.

Every schedule is a generator over :class:`Tick`; :func:`draw` shows it, :func:`check` proves it.
"""

from poptorch.schedule.checking import check, idle_share, peak_stash
from poptorch.schedule.clock import ScheduleError, data_dependencies
from poptorch.schedule.job import Job, Kind, Tick
from poptorch.schedule.phased import parallel_phased, serial_phased
from poptorch.schedule.pipelined import one_f_one_b, pipelined_inference
from poptorch.schedule.sharded import sharded
from poptorch.schedule.text import draw, read

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
