"""Pairs of rows and queries: held out together, and criteria of their order."""
