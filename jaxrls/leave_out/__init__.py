"""Predictions of a fit without some of its rows: solves with blocks of one matrix, R = I − H."""
