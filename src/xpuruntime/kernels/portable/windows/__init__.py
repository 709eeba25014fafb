"""Tasks that read a window of an image."""
