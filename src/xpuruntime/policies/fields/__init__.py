"""Fields: the records of policies, the kinds of their fields, and the checks of values."""
