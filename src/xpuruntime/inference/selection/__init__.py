"""Selection of an engine and a device for a model."""
