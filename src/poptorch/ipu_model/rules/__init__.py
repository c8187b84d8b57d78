"""Rules: what each operation is on an IPU, as a table for each family of operations."""
