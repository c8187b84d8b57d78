"""Everything that is needed to run a compiled model, without any of the user's Python."""
