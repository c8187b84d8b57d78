"""Turning a Program into something that runs."""
