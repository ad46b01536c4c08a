"""`fit` and `tune`: the problem, the choice of solver and λ, gradient search, landmarks."""
