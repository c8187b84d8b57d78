"""Small passes over a Program, one file each; ``poptorch.compiler.pipeline`` lists them in order."""
