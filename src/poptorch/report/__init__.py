"""Reports of compiled models: figures of the IPU Model and measured times, in files, as objects and as text."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from poptorch.figures import Shown
from poptorch.report.execution import Execution
from poptorch.report.files import Profile, load
from poptorch.report.objects import IPU, Compilation
from poptorch.report.programs import Program, ProgramVisitor
from poptorch.report.summary import as_text, summary


class Report(Shown):
    """A saved report: what was compiled, and how it ran. Prints as its summary."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.compilation = Compilation(profile)

    @cached_property
    def execution(self) -> Execution:
        """The recorded runs."""
        return Execution(self.compilation)

    def __str__(self) -> str:
        return as_text(summary(self.profile))


def openReport(profile: str | os.PathLike[str], debug: str | os.PathLike[str] | None = None) -> Report:
    """Read a report: the file ``profile.pop``, or the folder that it is in.

    Scripts for Poplar's library name a file with debug information, too. Here that is in the profile, and ``debug`` is
    not read.
    """
    return Report(load(Path(profile)))


__all__ = ["IPU", "Program", "ProgramVisitor", "Report", "openReport"]
