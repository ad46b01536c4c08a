"""Argument checks, the decorator of public calls, pytrees, files, progress bars, plots."""
