"""Several kernels with weights for every target, and greedy selection of columns."""
