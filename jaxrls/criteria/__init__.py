"""Validation errors over λ, all of them from a factor and labels."""
