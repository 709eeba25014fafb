"""Imports of modules in several threads at once, which PyTorch's tracer does not support."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

nn = torch.nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=mask)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_threads_import_modules_at_once() -> None:
    torch.manual_seed(0)
    modules = [Encoder().eval() for _ in range(2)]
    x, mask = torch.randn(2, 5, 16), torch.arange(5) >= torch.tensor([[3], [5]])
    imports, start = [], threading.Barrier(4, timeout=60)

    def run(module: nn.Module) -> None:
        start.wait()
        for _ in range(2):
            try:
                imports.append((module, import_torch(module, (x, torch.zeros_like(mask)))))
            except Exception as error:
                imports.append((module, error))

    threads = [threading.Thread(target=run, args=(modules[n % 2],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for _, error in imports if isinstance(error, Exception)] == []
    assert len(imports) == 8
    for module, (graph, weights) in imports:
        feeds = {v.name: t.numpy() for v, t in zip(graph.inputs, (x, mask), strict=True)}
        (got,) = interp.run(graph, feeds, weights=weights).values()
        with torch.no_grad():
            np.testing.assert_allclose(got, module(x, mask), rtol=1e-4, atol=1e-5)
