"""Errors worded for the caller, the door, pytrees, whole files, bars, pictures."""
