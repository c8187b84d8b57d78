"""The version of this package: ``<API level>-<build>``.

The API level is the newest release of the original API whose names are understood here, so that programs
which ask "is this at least 3.0?" take the right path. The build counts our own releases of that level; it is
a number so that ``packaging.version`` can compare the whole. A literal, because the build reads it without
importing.
"""

__version__ = "3.4.0-1"
