"""Kernels: their base class and algebra, the families, and those that a caller brings."""
