"""Data movement as lists of boxes of elements (``codegen/loops/boxes``)."""
