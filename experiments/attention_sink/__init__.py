"""Attention sinks of networks that are grown on a small task."""
