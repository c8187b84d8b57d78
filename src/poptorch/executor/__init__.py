"""``trainingModel``, ``inferenceModel`` and the executor they return: a facade over all rooms of the road."""
