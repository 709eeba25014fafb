"""Models as sessions open them: files, modules and programs, with their store entries."""
