"""Modules whose forward takes derivatives, and distributions that check their arguments: what is imported computes what the module does."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import distributions, func, nn  # noqa: E402

from xpuruntime.errors import ModelError  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402


class Network(nn.Module):
    """A field u(x) of points [2]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(2, 16), nn.Linear(16, 1)
        self.scale = torch.tensor([1.5, 0.5])

    def u(self, x):
        return self.b(torch.sin(3 * self.a(x * self.scale))).squeeze(-1)


class Laplacian(Network):
    def forward(self, x):
        hessian = func.vmap(func.hessian(self.u))(x)
        return self.u(x), func.vmap(func.jacrev(self.u))(x), hessian[:, 0, 0] + hessian[:, 1, 1]


class Forces(Network):
    """Forces as gradients of an energy, as in models of molecules."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = self.u(x).sum()
            (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
        return {"energy": energy.detach(), "forces": -gradient.detach()}


class Tangents(Network):
    def forward(self, x):
        y, tangent = func.jvp(self.u, (x,), (torch.ones_like(x),))
        return y, tangent, func.vmap(func.jacfwd(self.u))(x)


def imported(module, x):
    graph, weights = import_torch(module, (x,))
    assert all(n.op != "opaque" for n in graph.nodes), [n.name for n in graph.nodes if n.op == "opaque"]
    assert set(weights) <= set(module.state_dict())
    return graph, weights


@pytest.mark.parametrize("cls", [Laplacian, Forces, Tangents])
def test_forward_takes_derivatives(cls):
    module, x = cls().eval(), torch.rand(4, 2)
    graph, weights = imported(module, x)
    assert [v.name for v in graph.inputs] == ["x"]
    x = torch.rand(4, 2)
    got = interp.run(graph, {"x": x.numpy()}, weights=weights)
    want = module(x)
    names = list(want) if isinstance(want, dict) else [f"output_{i}" for i in range(len(want))]
    for name, tensor in zip(names, want.values() if isinstance(want, dict) else want, strict=True):
        np.testing.assert_allclose(got[name], tensor.detach(), rtol=1e-4, atol=1e-4)


def test_buffers_become_states_and_stay_as_they_are():
    class Counted(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return func.vmap(func.jacfwd(self.u))(x), self.calls.clone()

    module = Counted().eval()
    graph, weights = imported(module, torch.rand(4, 2))
    assert [s.name for s in graph.states] == ["calls.state"]
    assert module.calls.item() == 0
    states = {}
    for count in (1, 2):
        outputs = interp.run(graph, {"x": torch.rand(4, 2).numpy()}, weights=weights, states=states)
        assert outputs["output_1"] == count


def test_a_branch_on_content_is_refused():
    class Branch(Network):
        def forward(self, x):
            gradient = func.vmap(func.grad(self.u))(x)
            return gradient if gradient.sum() > 0 else -gradient

    with pytest.raises(ModelError, match=r"extract_ir\('Branch'\)"):
        import_torch(Branch().eval(), (torch.rand(4, 2),))


def test_a_buffer_that_is_replaced_is_refused():
    class Replaced(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(4, 2))

        def forward(self, x):
            self.last = func.vmap(func.grad(self.u))(x)
            return self.last

    with pytest.raises(ModelError, match=r"extract_ir\('Replaced'\)"):
        import_torch(Replaced().eval(), (torch.rand(4, 2),))


# ── distributions ──


def test_distributions_check_no_arguments():
    class LogLikelihood(nn.Module):
        def forward(self, x):
            normal = distributions.Normal(x, x.exp())
            standard = distributions.Normal(torch.zeros_like(x), torch.ones_like(x))
            return normal.log_prob(x + 1), distributions.kl_divergence(normal, standard)

    before = distributions.Distribution._validate_args
    module, x = LogLikelihood().eval(), torch.randn(4, 3)
    graph, weights = imported(module, x)
    got = interp.run(graph, {"x": x.numpy()}, weights=weights)
    for value, want in zip(got.values(), module(x), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5)
    assert distributions.Distribution._validate_args is before


def test_a_check_that_the_model_asks_for_is_refused():
    class Checked(nn.Module):
        def forward(self, x):
            return distributions.Normal(x, x.exp(), validate_args=True).log_prob(x)

    with pytest.raises(ModelError, match="branches on the content of a tensor"):
        import_torch(Checked().eval(), (torch.randn(4, 3),))
