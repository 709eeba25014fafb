"""Functions of cuDNN that PyTorch's operators do not offer or do not call, on PyTorch's tensors, through cuDNN's C interface."""
