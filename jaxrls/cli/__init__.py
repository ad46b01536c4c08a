"""The command line: its arguments, its two commands `fit` and `predict`, and their reports."""
