"""The contract grid: every factor and every criterion, with and without weights and intercept,
against one brute-force oracle.
"""
