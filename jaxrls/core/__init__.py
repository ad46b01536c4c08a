"""The method whole: kernels, one factorization, every λ, held-out errors, criteria, `fit` and
`tune`. It knows nothing of the rooms around it; methods of `Fit` import theirs when they are
called.
"""
