"""From the user's module and arguments to a recorded graph of ATen operations."""
