"""The method, as functions of arrays: kernels, one factorization, every λ, held-out errors,
criteria, and a whole fit. It knows nothing of what stands on it.
"""
