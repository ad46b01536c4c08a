"""Two-sided data."""
