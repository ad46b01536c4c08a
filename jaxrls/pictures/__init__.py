"""Plots of results with Matplotlib, which is imported when the first one is drawn."""
