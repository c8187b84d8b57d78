"""Several micro-batches as one program for the host."""
