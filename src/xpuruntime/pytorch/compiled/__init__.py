"""The backend of ``torch.compile``: forward and backward graphs of PyTorch's compiler, through our passes and kernels.

backend.py        the entry that PyTorch calls, and the operators that it decomposes for us
head_loss.py      losses of language models, without their logits
partition.py      what forward keeps for backward, and what backward computes again
norm_statistics.py layer norms that backward computes from the statistics of forward
linear_layers.py  products that are linear layers
whole_pools.py    means of whole images, which stay pools
regions.py        which nodes our compiler takes; connected ones become regions
by_size.py        graphs with dynamic sizes
region.py         a region: its programs by policy, and PyTorch's operators where there is none
report.py         what each graph became, with a reason for every node that stays with PyTorch
"""

from __future__ import annotations

from .backend import xpuruntime_backend
from .report import CompiledGraphReport, compiled_graphs

__all__ = ["CompiledGraphReport", "compiled_graphs", "xpuruntime_backend"]
