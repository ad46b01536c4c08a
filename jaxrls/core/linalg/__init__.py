"""Products at full precision, decompositions, inverses with exact derivatives."""
