"""What stops PopRun before it starts anything."""

from __future__ import annotations


class PoprunError(Exception):
    """The job cannot be started; the text says why and what to do."""


class UsageError(PoprunError):
    """The command line is wrong; the usage is printed, too."""
