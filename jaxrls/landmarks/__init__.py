"""The subset of regressors: landmarks, their choice, and their factors."""
