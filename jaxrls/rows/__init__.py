"""N rows, wherever they live; K and K·V in blocks; moments."""
