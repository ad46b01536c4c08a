"""What a fit says beyond its mean: posterior, intervals, probabilities, sets of labels, influence."""
