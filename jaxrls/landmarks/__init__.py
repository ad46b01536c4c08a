"""Implement the subset of regressors: landmarks, their choice, and factors on landmarks."""
