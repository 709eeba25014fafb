"""Sessions whose model is split over several engines: placed by a policy, cut out by a rule, or for ops that native lacks."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import EngineUnavailable, KernelUnavailable, PolicyError, RunTimeout
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.inference.partitioned import region_runners

ort = pytest.importorskip("onnxruntime")
CPU = {"device": "cpu", "threads": 1}
X = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture
def case(vendor_op) -> tuple[bytes, np.ndarray]:
    """A model of which native lacks one op, and its result on X."""
    data = vendor_op().SerializeToString()
    return data, ort.InferenceSession(data).run(None, {"x": X})[0]


def close(got: np.ndarray, want: np.ndarray) -> bool:
    return bool(np.abs(got - want).max() <= 1e-5 * np.abs(want).max())


def test_native_named_and_a_fallback_allowed(case, caplog) -> None:
    model, want = case
    with pytest.raises(EngineUnavailable, match="SampleOp"):
        xrt.InferenceSession(model, engine="native", **CPU)
    policy = xrt.ExecutionPolicy(allow_fallback="cpu")
    with (
        caplog.at_level(logging.WARNING),
        xrt.InferenceSession(model, engine="native", exec_policy=policy, **CPU) as sess,
    ):
        assert close(sess.run(x=X)["y"], want)
        engine = sess.plan.decision("engine")
        assert engine.chosen.code is Reason.FALLBACK
        assert engine.rejected[0].name == "native on cpu"
        receipt = sess.receipt()
    assert receipt.confirmed, receipt
    engines = {r.id: r.engine for r in sess.plan.regions}
    by_node = {n.name: engines[n.region] for n in sess.plan.nodes}
    assert by_node["vendor"] == "onnxruntime"
    assert by_node["first"] == "native"
    assert "SampleOp" in sess.plan.decision_for(sess.plan.nodes[1].region).explain()


def test_a_policy_places_nodes(case) -> None:
    model, want = case
    policy = {
        "version": 1,
        "execution": {"engine": "onnxruntime", "place": {"first": "native", "last": "interpreter"}},
    }
    with xrt.InferenceSession(model, policy=policy, **CPU) as sess:
        assert close(sess.run(x=X)["y"], want)
        assert [(r.engine) for r in sess.plan.regions] == ["native", "onnxruntime", "interpreter"]
        assert [(t.value, t.source, t.destination) for t in sess.plan.transfers] == [
            ("h", "r0", "r1"),
            ("z", "r1", "r2"),
        ]
        receipt = sess.receipt()
        assert type(sess.plan).from_json(sess.plan.to_json()) == sess.plan
    assert receipt.confirmed, receipt
    assert "place 'first'" in str(receipt.plan.explain())
    assert any("cut from 2 of the model's own nodes" in n for n in receipt.evidence["r1"].notes)


def test_a_placement_that_cannot_be_had_is_an_error(case) -> None:
    model, _ = case
    with pytest.raises(EngineUnavailable, match="place 'vendor' requires native, which is not available"):
        xrt.InferenceSession(
            model, policy={"version": 1, "execution": {"place": {"vendor": "native"}}}, **CPU
        )
    with pytest.raises(PolicyError, match="no such engine"):
        xrt.InferenceSession(model, policy={"version": 1, "execution": {"place": {"vendor": "nativ"}}}, **CPU)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("native on npu", "native regions run on the cpu here, not on npu"),
        ("openvino on npux", "place.first: no such device; got 'npux'. Did you mean 'npu'"),
        ("torch on npu", "place.first: no such engine; got 'torch'"),
        ("npu", "place.first: no such engine; got 'npu'"),
    ],
)
def test_a_place_on_another_device_is_had_or_an_error(case, value: str, text: str) -> None:
    data, _ = case
    with pytest.raises((EngineUnavailable, xrt.PolicyError), match=text):
        xrt.InferenceSession(data, policy={"version": 1, "execution": {"place": {"first": value}}})


def test_a_forced_kernel_is_cut_out_of_a_vendors_region(network) -> None:
    graph, weights = network
    model = to_onnx(graph, weights)
    x = np.random.default_rng(4).standard_normal((2, 3, 16, 16)).astype(np.float32)
    want = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    rule = xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="generated")])
    with xrt.InferenceSession(model, engine="onnxruntime", kernel_policy=rule, **CPU) as sess:
        assert close(sess.run(x=x)["y"], want)
        native = [r.id for r in sess.plan.regions if r.engine == "native"]
        assert len(native) == 1
        assert [n.family for n in sess.plan.nodes if n.region == native[0]] == ["matmul"]
        receipt = sess.receipt()
        assert "uses kernel 'generated'" in sess.plan.explain()
    assert receipt.confirmed, receipt
    assert any(row.kernel.startswith("matmul/generated") for row in receipt.evidence[native[0]].rows)
    never = xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="cublas")])
    with pytest.raises(KernelUnavailable, match="forces 'cublas'"):
        xrt.InferenceSession(model, engine="onnxruntime", kernel_policy=never, **CPU)
    placed = {"version": 1, "execution": {"place": {"matmul": "openvino"}}}
    with pytest.raises(EngineUnavailable, match="uses kernel 'generated' of the native engine"):
        xrt.InferenceSession(model, policy=placed, kernel_policy=rule, **CPU)


def test_a_pytorch_module_with_functions_that_only_pytorch_has() -> None:
    torch = pytest.importorskip("torch")

    class Special(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.last(torch.special.airy_ai(self.first(x)))

    module, x = Special().eval(), torch.randn(3, 8)
    options = {"engine": "native", "example_inputs": x, **CPU}
    with pytest.raises(EngineUnavailable, match="special_airy_ai"):
        xrt.InferenceSession(module, **options)
    policy = xrt.ExecutionPolicy(allow_fallback="cpu")
    with torch.no_grad(), xrt.InferenceSession(module, exec_policy=policy, **options) as sess:
        got = sess.run(x=x)["output"]
        assert [r.engine for r in sess.plan.regions] == ["native", "torch", "native"]
        assert isinstance(got, torch.Tensor)
        assert close(got.numpy(), module(x).numpy())
        receipt = sess.receipt()
    assert receipt.confirmed, receipt
    assert receipt.evidence["r1"].rows[0].kernel == "torch: aten::special_airy_ai"


def test_regions_of_open_sizes_are_confirmed() -> None:
    """They are built at the first run, and the plan knew their engine's version before."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    policy = {"version": 1, "execution": {"engine": "onnxruntime", "place": {"relu": "native"}}}
    with xrt.InferenceSession(
        net,
        policy=policy,
        example_inputs=torch.from_numpy(X),
        dynamic_shapes={"input": {0: torch.export.Dim("n", max=64)}},
        **CPU,
    ) as sess:
        (name,) = [i.name for i in sess.get_inputs()]
        for rows in (4, 2):
            want = net(torch.from_numpy(X[:rows])).detach().numpy()
            (got,) = sess.run({name: X[:rows]}).values()
            assert close(np.asarray(got), want)
        assert {r.engine: r.engine_version for r in sess.plan.regions} == {
            "onnxruntime": ort.__version__,
            "native": xrt.__version__,
        }
        assert f"in {len(sess.plan.regions)} regions" in sess.plan.decision("engine").chosen.name
        receipt = sess.receipt()
        assert receipt.confirmed, receipt


def test_a_run_that_takes_too_long_ends_before_its_next_region(case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, want = case
    call, slow = region_runners.InterpreterRunner.call, [0.3]

    def sleeping(self, form, arrays):
        time.sleep(slow[0])
        return call(self, form, arrays)

    monkeypatch.setattr(region_runners.InterpreterRunner, "call", sleeping)
    policy = {
        "version": 1,
        "execution": {"engine": "onnxruntime", "place": {"first": "interpreter"}, "run_timeout_s": 0.1},
    }
    with xrt.InferenceSession(model, policy=policy, **CPU) as sess:
        with pytest.raises(RunTimeout, match="run_timeout_s"):
            sess.run(x=X)
        slow[0] = 0.0
        assert close(sess.run(x=X)["y"], want)


@pytest.mark.parametrize("engine", [None, "auto"])
def test_a_module_that_no_engine_has_whole_is_cut_without_being_asked(engine: str | None) -> None:
    torch = pytest.importorskip("torch")

    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, x):
            q, r = torch.linalg.qr(self.first(x))
            return self.last(q @ r), x[x > 0].exp()

    module, x = Parts().eval(), torch.randn(3, 4)
    with torch.no_grad(), xrt.InferenceSession(module, engine=engine, example_inputs=x, device="cpu") as sess:
        for value in (x, -x.abs(), x + 1):
            for ours, theirs in zip(sess.run(x=value).values(), module(value), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert {r.engine for r in sess.plan.regions} == {"native", "torch", "interpreter"}
        (decision,) = (d for d in sess.plan.decisions if d.subject == "Parts" and d.question == "engine")
        assert "PyTorch and NumPy compute the other nodes" in decision.chosen.reason
    with pytest.raises(EngineUnavailable, match=r"linalg_qr.*allow_fallback='cpu'"):
        xrt.InferenceSession(module, engine="native", example_inputs=x, device="cpu")
    strict = xrt.ExecutionPolicy(strict=True)
    with pytest.raises(EngineUnavailable, match="linalg_qr"):
        xrt.InferenceSession(module, engine=engine, example_inputs=x, exec_policy=strict, device="cpu")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["qr", "svdvals", "eigvalsh", "pinv", "lu_factor"])
def test_a_factorization_in_the_middle(name: str) -> None:
    """The named engine refuses it with the op and what to pass; that then runs it."""
    torch = pytest.importorskip("torch")

    class Factored(torch.nn.Module):
        def forward(self, x):
            y = torch.tanh(x @ x.mT) + 3 * torch.eye(4)
            result = getattr(torch.linalg, name)(y)
            values = result[0].abs() if isinstance(result, tuple) else result.abs()
            return torch.relu(values * 2 + 1)

    module, x = Factored(), torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    op = {"svdvals": "_linalg_svd", "eigvalsh": "_linalg_eigh"}.get(name, f"linalg_{name}")  # fmt: skip
    with pytest.raises(
        EngineUnavailable, match=rf"{op}.*exec_policy=ExecutionPolicy\(allow_fallback='cpu'\)"
    ):
        xrt.InferenceSession(module, engine="native", example_inputs=x, device="cpu")
    fallback = xrt.ExecutionPolicy(allow_fallback="cpu")
    with xrt.InferenceSession(module, engine="native", example_inputs=x, device="cpu", exec_policy=fallback) as sess:  # fmt: skip
        torch.testing.assert_close(sess.run([x])["output"], module(x), rtol=1e-4, atol=1e-4)


def test_an_op_that_pytorch_decomposes_wrongly_is_computed_by_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Loss(torch.nn.Module):
        def forward(self, x, labels):
            return torch.nn.functional.multilabel_margin_loss(x * 2, labels)

    x, labels = torch.randn(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0]])
    with xrt.InferenceSession(Loss(), example_inputs=(x, labels), device="cpu") as sess:
        torch.testing.assert_close(sess.run(x=x, labels=labels)["output"], Loss()(x, labels))
