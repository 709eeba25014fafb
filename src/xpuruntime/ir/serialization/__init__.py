"""Serialization: graphs as text and as JSON, and weight files."""
