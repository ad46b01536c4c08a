"""Labels of all pairs of rows of two sides: K = K₁ ⊗ K₂."""
