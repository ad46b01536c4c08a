"""Errors worded for the caller, dtypes, pytrees, whole files, bars, pictures."""
