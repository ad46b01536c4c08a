"""Factorizations of a kernel and its rows, by spectrum, Cholesky or iteration: of K (dual) or of
moments of features (primal).
"""
