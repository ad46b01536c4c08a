"""Results of a fit: predictions, uncertainty, influence, class labels."""
