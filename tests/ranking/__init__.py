"""Pairs and queries."""
