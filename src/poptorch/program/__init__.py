"""The Program: one micro-batch of a model as a typed graph, and the loop that repeats it."""
