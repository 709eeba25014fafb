"""Models as sessions open them: files, modules, programs, and what the store keeps of them."""
