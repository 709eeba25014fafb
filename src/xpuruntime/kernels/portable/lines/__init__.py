"""Tasks that compute a whole line of a tensor."""
