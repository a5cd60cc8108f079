"""PyTorch's switches of the precision of products of f32: what programs say by them, and that a change compiles anew."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.lowering import lowered  # noqa: E402
from tools.pytorch import compiled  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.core.targets import load  # noqa: E402
from tilec.torch import precision  # noqa: E402
from tilec.torch.aten import decompositions  # noqa: E402
from tilec.torch.write import write  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch", "switches")
F, backends = torch.nn.functional, torch.backends
SETTINGS = [("generic", "all"), *((m, o) for m in ("cuda", "mkldnn") for o in ("all", "matmul", "conv", "rnn"))]


@pytest.fixture
def switches(monkeypatch):
    """PyTorch's defaults, and what was set before afterwards. PyTorch's own tests, once imported, forbid changes of switches."""
    monkeypatch.setitem(backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    before = [(s, torch._C._get_fp32_precision_getter(*s)) for s in SETTINGS]
    for multiplier, operation in SETTINGS:
        default = "tf32" if multiplier == "cuda" and operation in ("conv", "rnn") else "none"
        torch._C._set_fp32_precision_setter(multiplier, operation, default)
    yield
    for setting, value in before:
        torch._C._set_fp32_precision_setter(*setting, value)


def text(function, *shapes, device="cuda", dtype=torch.float32):
    with FakeTensorMode():
        given = [torch.empty(shape, device=device, dtype=dtype) for shape in shapes]
        results = lambda *t: made if isinstance(made := function(*t), tuple) else (made,)  # noqa: E731
        graph = make_fx(results, decomposition_table=decompositions())(*given).graph
    graph.eliminate_dead_code()
    precision.mark(graph)
    return write(graph).text


def of_convolution(device="cuda"):
    return text(lambda x, w, b: F.conv2d(x, w, b), (2, 8, 9, 9), (8, 8, 3, 3), (8,), device=device)


def of_product(device="cuda"):
    return text(lambda x, y: x @ y, (16, 8), (8, 4), device=device)


def setting(holder, name, value):
    return lambda: setattr(holder, name, value)


HIGH = torch.set_float32_matmul_precision
CHANGES = {  # what is set, and whether convolutions and other products on a GPU may then be rounded
    "nothing": (lambda: None, True, False),
    "convolutions": (setting(backends.cudnn, "allow_tf32", False), False, False),
    "products": (setting(backends.cuda.matmul, "allow_tf32", True), True, True),
    "high": (lambda: HIGH("high"), True, True),
    "medium": (lambda: HIGH("medium"), True, True),
    "highest": (lambda: (HIGH("high"), HIGH("highest")), True, False),
    "convolutions, by name": (setting(backends.cudnn.conv, "fp32_precision", "ieee"), False, False),
    "products, by name": (setting(backends.cuda.matmul, "fp32_precision", "tf32"), True, True),
    "all": (setting(backends, "fp32_precision", "tf32"), True, True),
    "all of cuDNN": (setting(backends.cudnn, "fp32_precision", "tf32"), True, True),
    "recurrent": (setting(backends.cudnn.rnn, "fp32_precision", "ieee"), True, False),
    "CPUs": (setting(backends.mkldnn, "allow_tf32", True), True, False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_gpu_may_round(change):
    make, convolutions, products = CHANGES[change]
    make()
    assert ("using tf32" in of_convolution(), "using tf32" in of_product()) == (convolutions, products)
    assert "using tf32" not in of_convolution("cpu") + of_product("cpu")


def test_what_a_cpu_may_round():
    """Products of tf32 are none of a CPU's."""
    HIGH("medium")
    assert "using bf16" in of_product("cpu") and "using" not in of_convolution("cpu")
    HIGH("high")
    assert "using" not in of_product("cpu")
    backends.mkldnn.conv.fp32_precision = "bf16"
    assert "using bf16" in of_convolution("cpu")


PRODUCTS = {
    "mm": (lambda x, y: x @ y, (8, 6), (6, 4)),
    "bmm": (lambda x, y: x @ y, (2, 8, 6), (2, 6, 4)),
    "addmm": (lambda b, x, w: F.linear(x, w, b), (4,), (8, 6), (4, 6)),
    "baddbmm": (torch.baddbmm, (2, 8, 4), (2, 8, 6), (2, 6, 4)),
    "addbmm": (torch.addbmm, (8, 4), (2, 8, 6), (2, 6, 4)),
    "einsum": (lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (2, 3, 8, 6), (2, 3, 5, 6)),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 6, 5, 5), (6, 4, 3, 3)),
    "transposed, dilated": (lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=2), (2, 6, 5, 5), (6, 4, 3, 3)),
    "grouped": (lambda x, w: F.conv1d(x, w, groups=2), (2, 6, 9), (4, 3, 3)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    backends.cuda.matmul.fp32_precision = "tf32"
    function, *shapes = PRODUCTS[name]
    assert "using tf32" in text(function, *shapes)
    for dtype in (torch.float64, torch.bfloat16):
        assert "using" not in text(function, *shapes, dtype=dtype)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions(transposed):
    shapes = ((2, 4, 9, 9), (2, 8, 7, 7)) if transposed else ((2, 8, 7, 7), (2, 4, 9, 9))
    given = *shapes, (8, 4, 3, 3)
    how = None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], 1, [True, True, False]
    gradients = lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, *how)[:2]  # noqa: E731
    assert text(gradients, *given).count("using tf32") == 2
    backends.cudnn.allow_tf32 = False
    assert "using" not in text(gradients, *given)


def test_a_gpu_s_kernels_are_those_of_the_switch():
    kinds = []
    for allowed in (True, False):
        backends.cudnn.allow_tf32 = allowed
        plan = lowered(of_convolution(), None, {}, target=load("h200"), end="plan", emit=False)[1].plan
        kinds.append({getattr(k.options, "multiplicand", None) for k in plan.kernels})
    assert "tf32" in kinds[0] and "tf32" not in kinds[1]


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """The texts of the programs that are compiled from now on. Tensors on a CPU obey the switches of a GPU."""
    monkeypatch.setattr(precision, "MULTIPLIERS", {"cpu": "cuda"})
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    return lambda: [p.read_text() for p in sorted(tmp_path.rglob("*.tile"))]


def test_a_change_compiles_anew(programs):
    convolved, w = compiled(lambda x, w: F.conv2d(x, w)), torch.randn(4, 3, 3, 3)
    x = torch.randn(1, 3, 6, 6)
    for allowed, count in ((True, 1), (True, 1), (False, 2), (True, 2), (False, 2)):
        backends.cudnn.allow_tf32 = allowed
        torch.testing.assert_close(convolved(x, w), F.conv2d(x, w), rtol=1e-2, atol=1e-2)
        assert len(programs()) == count
    assert ["using tf32" in p for p in programs()] == [True, False]


def test_a_product_compiles_anew(programs):
    multiplied, x = compiled(lambda x: x @ x), torch.randn(8, 8)
    for change in ("highest", "high", "medium", "highest"):
        HIGH(change)
        multiplied(x)
    assert ["using tf32" in p for p in programs()] == [False, True]


def test_a_backward_graph_has_the_switch_of_its_forward_graph(programs):
    w = torch.randn(4, 3, 3, 3, requires_grad=True)
    convolved, x = compiled(lambda x, w: F.conv2d(x, w)), torch.randn(1, 3, 6, 6)
    made = convolved(x, w)
    backends.cudnn.allow_tf32 = False
    made.sum().backward()
    assert [p.count("using tf32") for p in programs()] == [1, 1]
    convolved(x, w).sum().backward()
    assert [p.count("using tf32") for p in programs()] == [1, 1, 0, 0]
    assert len(tilec.torch.report().graphs) == 4
