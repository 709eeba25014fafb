"""Helpers that several passes share."""
