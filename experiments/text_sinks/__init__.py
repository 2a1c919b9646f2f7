"""Attention sinks of networks that read text."""
