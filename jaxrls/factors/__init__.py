"""The one hard step behind one contract: spectrum or Cholesky, dual or primal."""
