"""How this machine runs a device program: groups of micro-batches, interpreted and native code, where code is kept."""
