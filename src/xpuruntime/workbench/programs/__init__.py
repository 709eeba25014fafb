"""Programs: compiling a model's file, and descriptions of compiled programs."""
