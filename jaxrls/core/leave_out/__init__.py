"""Predictions of a fit without some of its rows, all of them solves with blocks of one matrix, the
residual operator R = I − H."""
