"""Movement ops as lists of boxes of elements (``codegen/loops/boxes``)."""
