"""Fit by products with K, for more rows, or more landmarks, than can be factored for.

`Refined` factors K in float32 and refines the result in float64.
"""
