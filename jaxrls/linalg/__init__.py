"""Products at full precision, decompositions that refuse derivatives, inverses."""
