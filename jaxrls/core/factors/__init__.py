"""Factors: one kernel with its rows, weights and fixed effects, factored. The matrix is K (dual) or
the moments of features (primal). The way is a spectrum, Cholesky factors or an iteration."""
