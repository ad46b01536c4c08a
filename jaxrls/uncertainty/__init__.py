"""What a fit says beyond its mean: posterior, intervals, probabilities, label sets, influence."""
