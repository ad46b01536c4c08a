"""Factors: a kernel with its rows, weights and fixed effects, factored, by a spectrum, by Cholesky
factors or by iteration; of K (dual) or of the moments of features (primal)."""
