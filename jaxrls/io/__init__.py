"""Write and read files of kernels, models and fits. Write files of predictions."""
