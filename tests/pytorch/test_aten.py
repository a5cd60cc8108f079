"""The translator table of ATen: what nodes become, and that samples of PyTorch's own tests come out right."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tools.lowering import lowered  # noqa: E402

from tests.outside import opinfo  # noqa: E402
from tests.outside.common import attempt  # noqa: E402
from tests.pytorch.translated import message, right, text  # noqa: E402
from tilec.core.targets import load  # noqa: E402
from tilec.torch import aten  # noqa: E402
from tilec.torch import indices as ix  # noqa: E402
from tilec.torch.program import Graph, Unsupported, literal  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

FAMILIES = {  # of each kind of operation some whose samples are run
    "pointwise": [
        "add",
        "sub",
        "div",
        "clamp",
        "where",
        "nn.functional.gelu",
        "nn.functional.softplus",
        "remainder",
        "bitwise_and",
    ],
    "reductions": ["sum", "mean", "var", "amax", "argmax", "cumsum", "logsumexp", "softmax"],
    "contractions": ["mm", "bmm", "addmm", "baddbmm", "nn.functional.linear"],
    "views": ["permute", "flip", "roll", "as_strided", "diagonal", "unfold", "narrow", "split"],
    "joins": ["cat", "stack", "nn.functional.pad", "tril", "select_scatter", "diagonal_scatter"],
    "gathers": ["gather", "index_select", "nn.functional.embedding", "take"],
    "windows": [
        "nn.functional.conv2d",
        "nn.functional.conv_transpose1d",
        "nn.functional.avg_pool2d",
        "nn.functional.max_pool2d",
    ],
    "norms": [
        "nn.functional.layer_norm",
        "nn.functional.group_norm",
        "nn.functional.batch_norm",
        "nn.functional.interpolate",
        "_upsample_bilinear2d_aa",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_samples_of_operations(family):
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for info in op_db:
        if info.name in FAMILIES[family] and torch.float32 in info.dtypes and not info.variant_test_name:
            found += [(info, s) for s in opinfo.spread(opinfo.samples(info, torch.float32), 2)]
    outcomes = [attempt(i.name, lambda i=i, s=s: opinfo.program(i, s, "float32")) for i, s in found]
    assert [o for o in outcomes if o.verdict == "failed"] == []
    assert sum(o.verdict == "passed" for o in outcomes) >= len(FAMILIES[family])


def test_refusal_and_translation_are_one():
    """A node is refused with the reason that its translation raises, and only then."""

    def call(x, n):
        return torch.topk(x.softmax(-1), 2)[0] + x[:, n].sum(), torch.acos(x), x.mode(-1)[0]

    module = opinfo.trace(call, [torch.randn(3, 4), torch.tensor([0, -1])])
    for node in module.graph.nodes:
        if node.op != "call_function" or any(isinstance(n.meta["val"], tuple) for n in node.all_input_nodes):
            continue
        graph = Graph()
        read = {
            n: graph.argument(n.name, n.meta["val"].shape, aten.dtype_of(n.meta["val"].dtype))
            for n in node.all_input_nodes
        }
        try:
            aten.translate(graph, node, read)
            raised = None
        except Unsupported as why:
            raised = str(why)
        assert aten.refusal(node) == raised
    refused = {str(n.target) for n in module.graph.nodes if n.op == "call_function" and aten.refusal(n)}
    assert "aten.mode.default" in refused and "aten.topk.default" not in refused and "aten._softmax.default" not in refused


def test_views_are_accesses():
    """A split into heads and a transpose store nothing; what merges dimensions is read by its parts."""
    x, w = torch.randn(2, 6, 8), torch.randn(8, 12)
    lines = message(lambda x, w: (x @ w).view(2, 6, 3, 4).transpose(1, 2).softmax(-1), x, w)
    assert len(lines) == 2 and "//" not in "".join(lines) and "%" not in "".join(lines)
    assert "sum[k0 in 0:8](x_1[i0, i1, k0] * w_1[k0, i2])" in lines[0].replace("arg0_1", "x_1").replace("arg1_1", "w_1")
    right(lambda x, w: (x @ w).view(2, 6, 3, 4).transpose(1, 2).softmax(-1), x, w)


def test_attention_is_two_products_and_a_softmax():
    q, k, v = (torch.randn(2, 3, 8, 16, dtype=torch.bfloat16) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    lines = message(lambda q, k, v: attend(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 8, 48), q, k, v)
    products = [line for line in lines if "sum[" in line]
    assert len(products) == 2 and "0.25 * sum[k0 in 0:16]" in products[0] and "using bf16" in products[1]
    assert sum("safe_softmax[i3]" in line for line in lines) == 1
    assert not any("//" in line for line in lines)


def test_rotary_positions_are_one_statement():
    """A part of each head is rotated, and joined with the rest: what the join reads is in the join, joins of halves too."""

    def rotated(x, cos, sin):
        t, rest = x[..., :8], x[..., 8:]
        half = torch.cat([-t[..., 4:], t[..., :4]], -1)
        return torch.cat([t * cos + half * sin, rest], -1)

    arguments = torch.randn(2, 6, 16), torch.randn(6, 8), torch.randn(6, 8)
    assert len(message(rotated, *arguments)) == 1
    right(rotated, *arguments)
    right(lambda x, cos, sin: rotated(x.permute(1, 0, 2)[:, :, None].permute(2, 1, 0, 3), cos, sin), *arguments)


def test_a_join_reads_what_takes_long_from_memory():
    """Neither what is broadcast into it nor what is read twice is computed at each of its elements."""
    x, y = torch.randn(6, 8), torch.randn(8)
    for call in (
        lambda x, y: torch.cat([torch.exp(y) + x, x]),
        lambda x, y: torch.cat([(z := torch.exp(x)) * z, x]),
    ):
        assert len(message(call, x, y)) == 2
        right(call, x, y)


def test_a_widened_tensor_is_not_stored():
    x = torch.randn(6, 8).bfloat16()
    lines = message(lambda x: (h := x.float())[:, 4:] + h[:, :4] + torch.cat([-h[:, :2], h[:, 2:4]], -1), x)
    assert len(lines) == 3 and not any(re.search(r"= f32\([^()]*\)( where|$)", line) for line in lines)


@pytest.mark.slow
def test_a_decoder_layer_is_a_few_kernels():
    """Root mean squares, products of one factor, rotations, attention with shared keys, products with residuals: as planned for an
    H200, each is a kernel, and no kernel is a copy."""
    b, s, heads, shared, d, wide = 2, 256, 8, 2, 64, 1408
    e, f = heads * d, torch.nn.functional

    def norm(x, w):
        h = x.float()
        return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    def rotated(t, cos, sin):
        half = torch.cat([-t[..., d // 2 :], t[..., : d // 2]], -1)
        return t * cos + half * sin

    def layer(x, cos, sin, n, wq, wk, wv, wo, gate, up, down):
        h = norm(x, n)
        q, k, v = (f.linear(h, w).view(b, s, -1, d).transpose(1, 2) for w in (wq, wk, wv))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (t[:, :, None].expand(b, shared, heads // shared, s, d).reshape(b, heads, s, d) for t in (k, v))
        a = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, e)
        x = x + f.linear(a, wo)
        h = norm(x, n)
        return x + f.linear(f.silu(f.linear(h, gate)) * f.linear(h, up), down)

    shapes = [(b, s, e), (s, d), (s, d), (e,), (e, e), *[(shared * d, e)] * 2, (e, e), *[(wide, e)] * 2, (e, wide)]
    program = text(layer, *(torch.randn(shape).bfloat16() for shape in shapes))
    assert "//" not in program and "%" not in program
    plan = lowered(program, None, {}, target=load("h200"), end="plan", emit=False)[1].plan
    assert len(plan.kernels) <= 9 and any(type(k.options).__name__ == "ContractionChain" for k in plan.kernels)


def test_a_softmax_of_rows_that_nothing_attends_to_is_zero():
    x = torch.randn(4, 8)
    x[1] = -torch.inf
    x[2, 3] = torch.nan
    right(lambda x: torch.ops.aten._safe_softmax(x, -1), x)


@pytest.mark.parametrize("name", ["_safe_softmax", "softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_softmax_of_one_number(name, dtype):
    """One key, as of the first token or of an image of one patch."""
    x = torch.tensor([[0.3], [-200.0], [-torch.inf], [torch.inf], [torch.nan]], dtype=dtype)
    right(lambda x: getattr(torch.ops.aten, name)(x, -1), x)


def test_attention_to_one_key_is_its_value():
    q, k, v = (torch.randn(2, 3, n, 4) for n in (5, 1, 1))
    right(torch.nn.functional.scaled_dot_product_attention, q, k, v)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: x + n,
        lambda x, n: n / 3,
        lambda x, n: 1 / (n + 10),
        lambda x, n: torch.div(n, 3, rounding_mode="trunc"),
        lambda x, n: torch.div(n, -2, rounding_mode="floor"),
        lambda x, n: n % 3 + torch.fmod(n, 3),
        lambda x, n: (x > 0) + (n > 1),
        lambda x, n: (x > 0) * n,
        lambda x, n: n.sum() + n.prod(),
        lambda x, n: (x > 0).sum(1),
        lambda x, n: n.to(torch.int8) * 100,
        lambda x, n: x[:, n],
        lambda x, n: x[n[0] % 3, n[1]],
        lambda x, n: torch.where(n > 0, x, 2),
        lambda x, n: x.masked_fill(n > 0, -1.5),
        lambda x, n: torch.full((3, 4), 0.1, dtype=torch.float64) * 3,
        lambda x, n: torch.arange(3, 9, 2) + n.flatten()[:3],
    ],
)
def test_types_are_promoted_as_in_pytorch(call):
    right(call, torch.randn(3, 4), torch.tensor([[-1, 2, 0, 1], [3, -3, 1, 2], [0, 0, 1, -2]]))


def test_expressions_of_16_bits_are_rounded_once():
    """What one smooth operation reads of another is not rounded; what leaves the program or is cast is."""
    x = torch.randn(8, dtype=torch.bfloat16)
    first, second = message(lambda x: torch.exp(x * 0.3), x)
    assert ": f32 =" in first and ": bf16 =" in second
    one, *_ = message(lambda x: (x * 0.3, torch.exp(x * 0.3)), x)
    assert ": bf16 =" in one or ": f32 =" in one
    cast = message(lambda x: torch.exp(x.float().bfloat16() + 1), x.float())
    assert any("bf16(" in line for line in cast)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "more", "groups", "dilation"),
    [
        (4, 2, 1, 0, 1, 1), (3, 2, 1, 1, 1, 1), (3, 2, 1, 0, 2, 1), (1, 2, 0, 1, 1, 1), (5, 3, 2, 2, 1, 1), (2, 3, 1, 0, 2, 1),
        (4, 2, 2, 0, 1, 1), (3, 2, 1, 0, 1, 2), (4, 4, 3, 1, 1, 6), (3, (2, 3), 2, 0, 2, (2, 1)), (2, 2, 1, 0, 4, 2),
    ],
)  # fmt: skip
def test_transposed_convolutions_with_strides(kernel, stride, padding, more, groups, dilation, dtype):
    """A sum for each remainder of positions by the stride; where a window has no element, the bias alone."""
    out = 8 if groups == 4 else 6
    x, w, b = torch.randn(2, 4, 5, 4), torch.randn(4, out // groups, kernel, kernel), torch.randn(out)
    sizes = {"stride": stride, "padding": padding, "output_padding": more, "groups": groups, "dilation": dilation}
    arguments, near = [t.to(dtype) for t in (x, w, b)], 1e-5 if dtype == torch.float32 else 0.02
    right(lambda x, w, b: torch.nn.functional.conv_transpose2d(x, w, b, **sizes), *arguments, rtol=near, atol=near)
    right(lambda x, w, b: torch.nn.functional.conv_transpose2d(x, w, None, **sizes), *arguments, rtol=near, atol=near)


@pytest.mark.parametrize(
    ("stride", "dilation", "padding", "kernel"), [(2, 2, 1, 3), (3, 2, 2, 4), (4, 6, 3, 3), (2, 1, 1, 4), (2, 4, 0, 1)]
)
def test_gradients_of_strided_dilated_convolutions(stride, dilation, padding, kernel):
    """The gradient of the input is a transposed convolution: a sum for each remainder that windows cover, zeros elsewhere."""
    x, w = torch.randn(2, 4, 19, 17), torch.randn(6, 4, kernel, kernel)
    how = None, [stride, stride], [padding, padding], [dilation, dilation], False, [0, 0], 1, [True, True, False]
    cotangent = torch.randn_like(torch.nn.functional.conv2d(x, w, None, stride, padding, dilation))
    gradients = lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, *how)[:2]  # noqa: E731
    right(gradients, cotangent, x, w, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [(3, 2, 1, 1, 1), (2, 1, 0, 2, 2), (1, 1, 0, 1, 1), (1, 2, 0, 1, 1), (3, 2, 0, 1, 2), (4, 3, 2, 1, 1)],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions(kernel, stride, padding, dilation, groups, transposed):
    x = torch.randn(2, 4, 7, 6)
    w = torch.randn(4, 6 // groups, kernel, kernel) if transposed else torch.randn(6, 4 // groups, kernel, kernel)
    sizes = [stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0, 0], groups
    y = torch.ops.aten.convolution(x, w, None, *sizes)
    backward = torch.ops.aten.convolution_backward
    right(lambda g, x, w: backward(g, x, w, [6], *sizes, [True] * 3), torch.randn_like(y), x, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("extent", "want"), [(3, [1, 2, 2, 4]), (1, [1])])
def test_a_strided_gradient_multiplies_no_zeros(extent, want):
    """Positions with one remainder by the strides have their taps in common."""
    sizes = [2, 2], [extent // 2] * 2, [1, 1], False, [0, 0], 1

    def gradient(g, x, w):
        return torch.ops.aten.convolution_backward(g, x, w, None, *sizes, [True, False, False])[0]

    lines = message(gradient, torch.randn(2, 6, 4, 3), torch.randn(2, 4, 8, 6), torch.randn(6, 4, extent, extent))
    sums = [line for line in lines if "sum[" in line]
    assert [2 ** len(re.findall(r"r\d in 0:2", line)) for line in sums] == want
    assert not any("%" in line for line in sums)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_gradient_has_the_dimensions_of_its_input(stride):
    """And windows of a depthwise convolution's gradient go forwards, so that neighbours share elements."""
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 1, 3, 3)
    sizes = [stride] * 2, [1 if stride == 1 else 0] * 2, [1, 1], False, [0, 0], 4
    y = torch.ops.aten.convolution(x, w, None, *sizes)

    def backward(g, x, w):
        return torch.ops.aten.convolution_backward(g, x, w, None, *sizes, [True, True, False])[0].exp()

    right(backward, torch.randn_like(y), x, w, rtol=1e-4, atol=1e-4)
    *_, last = message(backward, torch.randn_like(y), x, w)
    assert "[i0, i1, i2, i3]" in last.partition(" = ")[0]
    assert stride > 1 or any("i2 + r0 - 1, i3 + r1 - 1" in line for line in message(backward, y, x, w))


@pytest.mark.parametrize("drawn", ["lowest", "NaN", "both"])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("size", "window"),
    [(1, ((2, 2), (1, 1), (1, 1), (2, 2))), (5, ((3, 2), (2, 1), (1, 1), (2, 3))), (6, ((3, 3), (2, 2), (1, 1), (1, 1)))],
    ids=["in the border alone", "dilated", "dense"],
)
def test_positions_of_no_largest_element(size, window, order, drawn):
    x, share = torch.randn(2, 3, size, size), torch.rand(2, 3, size, size)
    x[share < (0 if drawn == "NaN" else 0.7)] = -torch.inf
    x[share > (2 if drawn == "lowest" else 0.8)] = torch.nan
    right(lambda x: torch.ops.aten.max_pool2d_with_indices(x, *window, True), x.contiguous(memory_format=order))
    cube = [(*n, n[0]) for n in window]
    right(lambda x: torch.ops.aten.max_pool3d_with_indices(x, *cube, True), torch.stack([x, x.flip(0)], -1)[..., :size])


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_gradients_of_pools(ceil_mode):
    x = torch.randn(2, 3, 7, 8)
    values, chosen = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1], [1, 1], ceil_mode)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    shape = [3, 3], [2, 2], [1, 1]
    right(lambda g, x, i: backward(g, x, *shape, [1, 1], ceil_mode, i), torch.randn_like(values), x, chosen)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_gradients_of_means(ceil_mode, counted):
    x, shape = torch.randn(2, 3, 7, 8), ([3, 3], [2, 2], [1, 1])
    mean = torch.ops.aten.avg_pool2d(x, *shape, ceil_mode, counted)
    backward = torch.ops.aten.avg_pool2d_backward
    right(lambda g, x: backward(g, x, *shape, ceil_mode, counted, None), torch.randn_like(mean), x)


def test_what_is_outside_of_a_view_is_outside_of_its_tensor():
    """A sample without a batch is a view with one; windows that leave it read zeros, and not its other rows."""
    x, w = torch.randn(4, 5), torch.randn(4, 2, 3)
    right(lambda x, w: torch.nn.functional.conv_transpose1d(x, w), x, w)
    right(lambda x, w: torch.nn.functional.conv1d(x, w.transpose(0, 1), padding=2), x, w)
    right(lambda x: torch.nn.functional.pad(x.view(2, 2, 5).transpose(0, 1).reshape(4, 5), (1, 2, 3, 0)), x)


def test_reductions_of_one_element():
    x = torch.randn(1, 1)
    right(lambda x: (x.mean(), x.sum(0), x.amax((0, 1), keepdim=True), x.argmax(1), x.var(0, correction=0)), x)


def test_subscripts_are_simplified():
    i, j = ix.name("a", 6), ix.name("b", 8)
    whole = i * 8 + j
    assert (whole // 8, whole % 8) == (i, j)
    assert str(whole // 2 % 4) == "b // 2"
    assert whole // 8 * 8 + whole % 8 == whole
    k = ix.name("c", 48)
    assert k // 8 * 8 + k % 8 == k
    assert ix.unflat(ix.flat([k // 8, k % 8], [8, 1]), [48]) == [k]
    assert str((k + 5) // 4) == "((c + 1) // 4 + 1)"


def test_subscripts_are_what_they_were():
    """Simplified text has the value of the arithmetic that it stands for."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        extents = rng.integers(1, 9, 3)
        names = [ix.name(n, int(e)) for n, e in zip("abc", extents)]
        made, plain = ix.number(0), "0"
        for n, letter in zip(names, "abc"):
            factor = int(rng.integers(-3, 9))
            made, plain = made + n * factor, f"({plain} + {letter} * {factor})"
        for _ in range(3):
            by = int(rng.integers(1, 13))
            if rng.integers(2):
                made, plain = made // by, f"({plain} // {by})"
            else:
                made, plain = made % by + names[0] * by, f"({plain} % {by} + a * {by})"
            if rng.integers(3) == 0:
                made, plain = 3 - made, f"(3 - {plain})"
        for _ in range(8):
            values = {n: int(rng.integers(e)) for n, e in zip("abc", extents)}
            assert eval(made.sum_text(), values) == eval(plain, values), (made, plain)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.nn.functional.pad((x + 1)[:, :5], (0, 2)),
        lambda x: [torch.nn.functional.pad(t, (0, 2)) for t in (x + 1).split(4, 1)],
        lambda x: torch.nn.functional.pad((x + 1).as_strided((3, 4), (8, 1)), (1, 1)),
        lambda x: torch.nn.functional.pad((x + 1).reshape(4, 12), (1, -1)),
        lambda x: torch.nn.functional.pad((x + 1).reshape(4, 12), (-1, 1)),
        lambda x: torch.nn.functional.avg_pool2d(torch.stack([x, -x])[..., :5], 3, 2, 1),
        lambda x: torch.nn.functional.conv1d(torch.stack([x, -x])[..., :5], torch.stack([x, -x])[..., :3], padding=1),
        lambda x: torch.nn.functional.conv_transpose1d(x[:2], torch.stack([x, -x])[..., :3], stride=2),
    ],
)
def test_outside_of_a_part_is_not_the_rest(call):
    """Borders of a view are zeros where the tensor that it is a part of has elements."""
    right(call, torch.randn(6, 8))


def test_large_numbers_that_are_scaled_are_multiplied_scaled():
    """A product reads what its factors are multiples of, which must not overflow where they do not."""
    right(lambda x, y: (x * 1e-25) @ (y / 1e25), torch.randn(3, 4) * 1e25, torch.randn(4, 3) * 1e25)
    lines = message(lambda x, y: (x * 0.25) @ (y / 2), torch.randn(3, 4), torch.randn(4, 3))
    assert len(lines) == 1 and "= 0.125 * sum" in lines[0]


def test_negative_floats_wrap_as_bytes():
    right(lambda x: x.to(torch.uint8), torch.tensor([-1.5, -200.0, 3.7, 255.0]))


def test_a_hypotenuse_overflows_no_sooner_than_its_sides():
    right(torch.hypot, torch.tensor([1e30, 1e-30, 3.0, 0.0, -torch.inf]), torch.tensor([-1e30, 1e-30, 4.0, 0.0, 1.0]), atol=0)


def test_numbers_have_the_type_they_stand_in():
    assert literal(-100.0, "i64") == "(-100)" and literal(300, "i8") == "44" and literal(2, "f32") == "2.0"
    assert literal(1e300, "f32") == "inf" and literal(-128, "i8") == "(-127 - 1)" and literal(2.5, "bool") == "true"
