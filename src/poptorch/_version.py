"""The version of this package: the API level it implements, then its own build number."""

API_LEVEL = "3.4.0"
"""The newest release of the original API whose names are understood here."""

BUILD = 1
"""Counts our own releases of that level. A number, so that ``packaging.version`` can compare the result."""

__version__ = f"{API_LEVEL}-{BUILD}"
