"""The uncertainty of a fit: posterior, intervals, effects, probabilities, label sets, influence."""
