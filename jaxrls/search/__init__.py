"""The problem, the grid of λ, the one call, the gradient search, landmarks."""
