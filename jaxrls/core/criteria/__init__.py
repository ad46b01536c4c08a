"""Criteria: validation errors for every λ, from a factor with labels. `fit` and `tune` minimise
them."""
