"""Values that generated code and the engine hand to each other: weights, random numbers, gradients in factors."""
