"""Write docs/error-catalogue.md: every error code with its cause, an example, what it says, and the cure.

The texts and examples are those of ``poptorch explain``; the messages are what the examples say when they run.
``--check`` fails if the page is not what would be written.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path

_devices = tempfile.TemporaryDirectory()  # other programs may use the IPUs of this machine
os.environ["POPTORCH_DEVICES_DIR"] = _devices.name

from poptorch.error_catalogue import ENTRIES, PARTS  # noqa: E402
from poptorch.error_catalogue.entry import Entry  # noqa: E402

PAGE = Path(__file__).resolve().parent.parent / "docs" / "error-catalogue.md"

HEAD = """\
# Error catalogue

Each error ends with a code such as `[PT1002]`. Here is what it means. `poptorch explain PT1002` prints the same in a
terminal. In a program `error.code` has the code of a `poptorch.Error`. The commonest errors have classes of their own:
they are in `poptorch.errors`, and derived from `poptorch.Error`.

```python
import poptorch
import torch

model = poptorch.inferenceModel(torch.nn.Linear(4, 2))
model(torch.ones(8, 4))
try:
    model(torch.ones(5, 4))
except poptorch.errors.ShapeMismatchError as error:
    print(error.code)
```

```text title="Output"
PT1002
```

Codes never change their meaning, and are not given again when an error goes. Codes that end in 000 stand for all errors
of a part without a code of their own: there the message itself says what to do. The examples begin with
`import torch, poptorch` and `from torch import nn`. The messages are what they print, in shorter lines.

<!-- Made by scripts/generate_error_catalogue.py from poptorch.error_catalogue. -->
"""


def laid_out(code: str) -> str:
    """An example with two empty lines around classes, as pages have them."""
    return re.sub(r"(?m)^(class .*(?:\n(?: .*)?)*?)\n+(?=\S)", r"\1\n\n\n", code.strip())


def section(entry: Entry) -> str:
    """One error."""
    parts = [f"### {entry.code}: {entry.title} {{#{entry.code.lower()}}}", entry.cause]
    parts.append(f"```py\n{laid_out(entry.example)}\n```")
    message = "\n".join(textwrap.fill(line, 96, break_long_words=False) for line in entry.message().splitlines())
    parts.append(f'```text title="Message"\n{message}\n```')
    parts.append(entry.cure)
    if entry.cured:
        parts.append(f"```py\n{laid_out(entry.cured)}\n```")
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """The whole page."""
    sections = [HEAD]
    for digit, part in PARTS.items():
        sections.append(f"## {part}\n")
        sections += [section(entry) for code, entry in ENTRIES.items() if code[2] == digit]
    return "\n".join(sections)


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != text:
            print(f"{PAGE.name} is not up to date: run scripts/generate_error_catalogue.py", file=sys.stderr)
            print(*difflib.unified_diff(PAGE.read_text().splitlines(), text.splitlines()), sep="\n", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
