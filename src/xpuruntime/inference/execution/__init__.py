"""One run of a session: inputs, bindings, contexts, futures, time limits."""
