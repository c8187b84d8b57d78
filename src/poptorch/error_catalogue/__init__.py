"""All errors that have a code, with their causes and cures: the source of the page, and of ``poptorch explain``."""

from __future__ import annotations

from poptorch.error_catalogue import calls, devices, forward, options, placement, training
from poptorch.error_catalogue.entry import Entry

PARTS = {
    "0": "Tools",
    "1": "Wrapped models and their calls",
    "2": "What forward() does",
    "3": "Options and environment variables",
    "4": "Blocks, stages and IPUs",
    "5": "Operations",
    "6": "Optimizers",
    "7": "Loading data",
    "8": "Devices, files and caches",
    "9": "Runs, and several processes",
}
"""What the first digit of a code says. Codes that end in 000 are for errors of a part without a code of their own."""

ENTRIES: dict[str, Entry] = {
    entry.code: entry
    for entry in sorted(
        [*calls.ENTRIES, *forward.ENTRIES, *options.ENTRIES, *placement.ENTRIES, *training.ENTRIES, *devices.ENTRIES],
        key=lambda entry: entry.code,
    )
}
