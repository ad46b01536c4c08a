"""The n rows of X, wherever they are stored; K and K·V in blocks; moments."""
