"""Helpers shared by several passes."""
