"""Files of kernels, models and fits, and of predictions."""
