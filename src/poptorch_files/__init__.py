"""Files that others may have written, and files that others read while they are written.

Both packages use this one. It needs the standard library and ``platformdirs`` only, so commands that have no other need
of torch do not import it. Whatever is wrong with a file is an ``OSError`` with a text (``strerror``) that can be shown
to users.
"""

from poptorch_files.places import state_folder
from poptorch_files.reading import FileError, parse_json, read_bytes, read_text
from poptorch_files.writing import (
    atomic,
    create,
    create_complete,
    extend,
    made_by_another,
    quietly_replaced,
    remove_unfinished,
    replace,
)

__all__ = [
    "FileError",
    "atomic",
    "create",
    "create_complete",
    "extend",
    "made_by_another",
    "parse_json",
    "quietly_replaced",
    "read_bytes",
    "read_text",
    "remove_unfinished",
    "replace",
    "state_folder",
]
