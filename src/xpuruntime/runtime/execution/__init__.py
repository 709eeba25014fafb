"""Execution: programs bound to a device, with their arguments, states and schedules."""
