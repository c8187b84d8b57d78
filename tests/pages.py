"""Run the Python blocks of a Markdown page one after the other, and compare what they print with what the page shows.

A block that is followed by one with the title "Output" must print exactly that; ``...`` stands for any text, as in
doctests:

    ```python
    print(1 + 1)
    ```

    ```text title="Output"
    2
    ```
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r'^text\b.*\btitle="Output"')
_CHECKER = doctest.OutputChecker()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    """A Python block of a page, the line where its code begins, and the output that the page shows for it."""

    code: str
    line: int
    output: str | None = None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page, in order."""
    found: list[Block] = []
    for fence in FENCE.finditer(text):
        info, body = fence["info"].strip(), fence["text"]
        line = text.count("\n", 0, fence.start("text")) + 1
        if info.split(" ")[0] == "python":
            found.append(Block(body, line))
        elif OUTPUT.match(info):
            if not found or found[-1].output is not None:
                raise ValueError(f"line {line}: an output without a Python block before it")
            found[-1].output = body
    return found


def run(page: Path) -> None:
    """Run all blocks of ``page`` in one namespace; errors and their tracebacks have the lines of the page."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text()):
        tree = ast.increment_lineno(ast.parse(block.code, filename=str(page)), block.line - 1)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, str(page), "exec"), namespace)
        if block.output is not None and not _CHECKER.check_output(block.output, printed.getvalue(), _FLAGS):
            found = f"prints\n{printed.getvalue()}\nbut the page shows\n{block.output}"
            raise AssertionError(f"{page.name}:{block.line} {found}")
