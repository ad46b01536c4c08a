"""Fit by products with K, for more rows, or more landmarks, than can be factored for."""
