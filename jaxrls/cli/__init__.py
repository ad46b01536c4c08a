"""The command line: its arguments, its two commands and their reports."""
