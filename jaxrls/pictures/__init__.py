"""Plots of results with Matplotlib, which is imported when the first plot is drawn."""
