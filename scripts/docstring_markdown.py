"""What the API pages change about docstrings: roles become code, and each run of examples becomes one block.

Docstrings are written to be read in a terminal and run by doctest. Markdown would take a line that begins with ``>>>``
for a quotation, and ``:meth:`` for text.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:meth|func|class|mod|attr|data|exc):`~?\.?([^`]+)`")
LITERAL = re.compile(r"``([^`]+)``")


def as_markdown(text: str) -> str:
    """The text of a docstring as Markdown.

    >>> print(as_markdown("See :func:`~poptorch.load`.\\n\\n>>> 1 + 1\\n2"))
    See `poptorch.load`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    in_example = False
    for line in LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", text)).splitlines():
        begins = line.lstrip().startswith(">>>")
        if begins and not in_example:
            lines.append("```pycon")
            in_example = True
        elif in_example and not line.strip():
            lines.append("```")
            in_example = False
        lines.append(line.strip() if in_example and begins else line)
    return "\n".join([*lines, "```"] if in_example else lines)


class DocstringMarkdown(griffe.Extension):
    """Rewrites every docstring that is loaded for the site."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
