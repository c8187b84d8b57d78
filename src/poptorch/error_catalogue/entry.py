"""What the catalogue knows about an error, and how its example is run."""

from __future__ import annotations

import gc
import linecache
import re
import tempfile
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

EXAMPLE = "example.py"
"""The file that messages name for a line of an example."""

_VARYING = (
    (re.compile(r"\bprocess \d+\b"), "process N"),
    (re.compile(r"\bat 0x[0-9a-f]+"), "at 0x…"),
    (re.compile(r"this process \(.*?\) since [-\d]+ [:\d]+"), "this process (…) since …"),
)
"""What messages say that is different in each run, and what pages show instead."""

PREAMBLE = "import torch\nfrom torch import nn\nimport poptorch\n"
"""What every example begins with; pages leave it out."""


@dataclass(frozen=True)
class Entry:
    """An error: why it is raised, an example that raises it, and the same example as it should be."""

    code: str
    title: str
    cause: str
    example: str
    cure: str
    cured: str
    """Empty where what is wrong is not in the program."""

    files: bool = False
    """Whether the examples read or write files: then they run in a folder of their own."""

    def message(self) -> str:
        """What the example says, without what differs from run to run.

        >>> Entry("PT0", "", "", "raise ValueError('process 7 of 8 [PT0]')", "", "").message()
        'ValueError: process N of 8 [PT0]'
        """
        try:
            self.run(self.example)
        except Exception as error:  # noqa: BLE001 - any error is what the example is for
            text = str(error)
            for what, stands_for in _VARYING:
                text = what.sub(stands_for, text)
            return f"{type(error).__name__}: {text}"
        raise AssertionError(f"the example of {self.code} raises no error")

    def run(self, code: str) -> None:
        """Run an example; only its errors show."""
        source = f"{PREAMBLE}{code.strip()}\n"
        linecache.cache[EXAMPLE] = len(source), None, source.splitlines(True), EXAMPLE
        gc.collect()  # models of other examples let go of their IPUs
        compiled = compile(source, EXAMPLE, "exec")
        with ExitStack() as around:
            if self.files:
                around.enter_context(chdir(around.enter_context(tempfile.TemporaryDirectory())))
            around.enter_context(redirect_stdout(StringIO()))
            around.enter_context(redirect_stderr(StringIO()))
            exec(compiled, {"__name__": "__main__"})
