"""Emitted CUDA kernels: what they look like, and that they compile to something fast, without a GPU."""

from __future__ import annotations

import ast
import re

import pytest
from expectations import EXAMPLES
from tools.cuda_kernels import compiled
from tools.lowering import emitted, lowered

from tilec.runtime import generated
from tilec.runtime.cuda import cubins

pytest.importorskip("numba_cuda_mlir.cuda")
LONG = {"transformer_block"}  # kernels like those of other examples, and many
ALL = [pytest.param(e, id=name, marks=pytest.mark.slow if name in LONG else ()) for name, e in EXAMPLES.items()]


@pytest.mark.crossed
@pytest.mark.parametrize("chip, target", [("sm_80", "a100"), ("sm_90a", "h200")])
@pytest.mark.parametrize("example", ALL)
def test_examples_compile_without_spills_or_stack(example, chip, target):
    program = emitted(example.path, example.op, example.bench_sizes, target)
    for kernel, cubin in compiled(program, chip):
        assert cubin.registers * kernel.threads <= 65536


SOFTMAX = """op softmax(x: f32[M, N]) -> (y: f32[M, N]) {
    m[i] = max[j](x[i, j])
    e[i, j] = exp(x[i, j] - m[i])
    s[i] = sum[j](e[i, j])
    y[i, j] = e[i, j] / s[i]
}"""


def test_softmax_reads_its_row_once_in_vectors():
    (kernel,) = emitted(SOFTMAX, None, {"M": 4096, "N": 4096}).kernels
    assert len(re.findall(r"load_f32x4\w*\(", kernel.text)) == 1
    assert len(re.findall(r"store_f32x4\w*\(", kernel.text)) == 1
    assert kernel.text.count("syncthreads") == 2
    assert not re.search(r"\bload_f32\(", kernel.text)


@pytest.mark.parametrize("length", [31, 1000, 4096, 16384, 40000])
def test_rows_of_any_length_compile(length):
    program = emitted(SOFTMAX, None, {"M": 256, "N": length})
    assert all(cubin.stack == 0 for _, cubin in compiled(program, "sm_90a"))


def test_kernels_name_their_sources():
    (kernel,) = emitted(EXAMPLES["softmax"].path, None, {"M": 64, "N": 64}).kernels
    assert re.search(r"# softmax\.tile:\d+: m\[i\] = max\[j\]", kernel.text)
    assert re.search(r"# softmax\.tile:\d+: y\[i, j\] = e\[i, j\] / s\[i\]", kernel.text)


SEVERAL = """op f(q: bf16[H, S, D], k: bf16[H, S, D], v: bf16[H, S, D], x: bf16[M, K], w: bf16[K, N])
-> (o: bf16[H, S, D], y: bf16[M, N]) {
    s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d])
    p[h, i, j] = softmax[j](s[h, i, j])
    o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d]) using bf16
    y[m, n] = sum[k](x[m, k] * w[k, n])
}"""


def test_kernels_of_the_callback_are_those_of_the_module():
    """They are compiled already: definitions that differ from one kernel to the next have different names from the start, and
    their order in the text of the module means nothing."""
    heard = []
    sizes = {"H": 48, "S": 1024, "D": 64, "M": 4096, "K": 768, "N": 2304}
    made = lowered(SEVERAL, None, sizes, on_kernel=lambda registers, text, kernel: heard.append((text, kernel)))[1].emitted
    assert made is not None and len(set(re.findall(r"^\w+ = set_registers.*$", made.module, re.MULTILINE))) == 4
    assert sorted(k.name for _, k in heard) == sorted(k.name for k in made.kernels) == ["f_o", "f_y"]
    modules = generated.alone(made.module)
    for text, kernel in heard:
        assert kernel in made.kernels
        assert cubins._same(text, kernel, None) == cubins._same(modules[kernel.name], kernel, None)


def test_names_of_the_source_never_become_code():
    source = "op print(exec: f32[cuda, N]) -> (thread: f32[cuda, N]) { thread[float32, i] = exec[float32, i] * 2 }"
    program = emitted(source, None, {"cuda": 8, "N": 32})
    functions = [n for n in ast.walk(ast.parse(program.module)) if isinstance(n, ast.FunctionDef)]
    imported = {a.name for n in ast.walk(ast.parse(program.module)) if isinstance(n, ast.ImportFrom) for a in n.names}
    arguments = {a.arg for f in functions for a in f.args.args}
    assert arguments == {"exec_1", "thread"} and not arguments & imported
    stored = {
        n.id for n in ast.walk(ast.parse(program.module)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    assert not stored & (imported | arguments | {"float32", "cuda"})
    assert all(cubin.spills == 0 for _, cubin in compiled(program, "sm_90a"))


@pytest.mark.parametrize("target", ["h200", "cpu"])
@pytest.mark.parametrize("op, result", [("bulk", "commit"), ("fewer", "registers"), ("reassoc", "add")])
def test_kernels_with_names_of_device_functions(op, result, target):
    """Which they call by another name then."""
    source = f"op {op}(a: bf16[M, K], b: bf16[K, N]) -> ({result}: bf16[M, N]) {{ {result}[i, j] = sum[k](a[i, k] * b[k, j]) }}"
    program = emitted(source, None, {"M": 1024, "N": 1024, "K": 512}, target)
    tree, (kernel,) = ast.parse(program.module), program.kernels
    imported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    assigned = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets}
    assert kernel.name == f"{op}_{result}" and kernel.name not in imported | assigned
    if target == "h200" and op == "bulk":
        assert all(cubin.spills == 0 for _, cubin in compiled(program, "sm_90a"))


def test_tensor_maps_have_names_of_their_own():
    source = "op f(a: bf16[M, K], a_map: bf16[K, N]) -> (c: bf16[M, N]) { c[i, j] = sum[k](a[i, k] * a_map[k, j]) }"
    (kernel,) = emitted(source, None, {"M": 1024, "N": 1024, "K": 512}).kernels
    arguments = [a.arg for a in ast.parse(kernel.text).body[0].args.args]
    assert len(kernel.maps) == 3 and len({*arguments}) == len(arguments) == 6


@pytest.mark.parametrize("function", ["min", "max"])
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_unsigned_extrema_have_no_sign(function, bits):
    t = f"u{bits}"
    source = f"op f(x: {t}[N], z: {t}[N]) -> (y: {t}[N]) {{ y[i] = {function}(x[i], z[i]) }}"
    for _, cubin in compiled(emitted(source, None, {"N": 64}), "sm_90a"):
        assert set(re.findall(r"\b(?:min|max|setp\.[lg][te])\.([su])\d", cubin.ptx)) == {"u"}


def test_modules_import_what_they_use():
    module = emitted(EXAMPLES["layernorm"].path, None, {"M": 64, "N": 4096}).module
    imported = {a.name for n in ast.walk(ast.parse(module)) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert imported == {n for n in imported if re.search(rf"\b{n}\b", module.split(")", 1)[1])}


def test_a_failed_check_stores_its_number():
    (kernel,) = emitted(EXAMPLES["embedding"].path, None, EXAMPLES["embedding"].sizes).kernels
    assert "store_i32(errors, int32(1))" in kernel.text and len(kernel.sites) == 1
    assert "embedding.tile" in kernel.sites[0]


def test_registers_of_roles_fit_in_each_kernel_of_a_program():
    """Kernels with two and with three warpgroups that multiply, in one program: a warpgroup that asks for more registers than
    there are left waits for ever."""
    kinds = {"q": "f32", "k": "f32", "v": "bf16"}
    product = "sum[k in 0:768](x[b, i, k] * w{0}[j, k]) + c{0}[j] where b in 0:32, i in 0:128, j in 0:768"
    text = "\n".join(
        [
            "op f(x: bf16[32, 128, 768], w0: bf16[768, 768], w1: bf16[768, 768], w2: bf16[768, 768], w3: bf16[3072, 768], ",
            "c0: bf16[768], c1: bf16[768], c2: bf16[768]) -> (q: f32[32, 128, 768], k: f32[32, 128, 768], ",
            "v: bf16[32, 128, 768], y: bf16[32, 128, 3072]) {",
            *(f"  {name}[b, i, j]: {kinds[name]} = {product.format(n)}" for n, name in enumerate(kinds)),
            "  s[b, i, j]: f32 = sum[k in 0:768](v[b, i, k] * w3[j, k]) where b in 0:32, i in 0:128, j in 0:3072",
            "  y[b, i, j]: bf16 = gelu(s[b, i, j]) where b in 0:32, i in 0:128, j in 0:3072",
            "}",
        ]
    )  # fmt: skip
    program = emitted(text, None, {}, "h200")
    roles = {}
    for kernel in program.kernels:
        called = dict(re.findall(r"((?:more|fewer)_registers\w*)()\(\)", kernel.text))
        counts = {n: int(re.search(rf"^{n} = set_registers\((\d+)", program.module, re.MULTILINE)[1]) for n in called}
        more, fewer = (next(c for n, c in counts.items() if n.startswith(w)) for w in ("more", "fewer"))
        assert 128 * fewer + (kernel.threads - 128) * more <= 65536
        roles[kernel.threads] = more
    assert len(roles) == 2 and len({*roles.values()}) == 2

