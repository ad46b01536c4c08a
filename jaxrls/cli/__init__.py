"""The command line: what is typed, what is done, what is said."""
