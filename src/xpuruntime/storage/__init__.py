"""Storage: the store, checkpoints and tensor files, and safe reading and writing of files."""
