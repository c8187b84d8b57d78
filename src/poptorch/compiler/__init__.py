"""The Program, the passes over it, and code generation."""
