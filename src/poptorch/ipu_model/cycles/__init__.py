"""Cycles of the codelets of an IPU, as functions of sizes and types."""
