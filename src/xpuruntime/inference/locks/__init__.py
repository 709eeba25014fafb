"""Locks of sessions: making them, and opening a session under one."""
