"""Measuring a detector: datasets, metrics, runs."""
