"""The text of one task (an element or a line) that compiles for every C-style target. ``cpu`` loops over tasks, ``cuda`` runs one thread per task."""
