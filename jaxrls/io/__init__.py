"""Files: models, tables, the data set that the package carries."""
