"""Files: models, tables, the embedded data."""
