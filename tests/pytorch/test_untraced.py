"""What tilec leaves in PyTorch hinders nobody: gradients inside compiled functions, by any back end; settings; what Dynamo traces.

What may wait for ever runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks.files import modules  # noqa: E402
from tilec.process.untraced import CALLED, TRACED  # noqa: E402
from tilec.torch import warm_up  # noqa: E402

LIMIT = 300.0  # seconds of a child, which takes some ten
BEGIN = """
import os, sys
import torch
import tilec, tilec.torch
from tilec.torch.backend import register
register()
compiled = lambda function, name="tilec", **options: torch.compile(function, backend=name, **options)
break_graph = torch._dynamo.graph_break
def like(found, wanted):
    torch.testing.assert_close(torch.as_tensor(found).detach(), torch.as_tensor(wanted))
SCALED = "op scaled(x: f32[N], w: f32[N]) -> (y: f32[N]) { y[i] = x[i] * w[i] }"
BACK = '''op back(x: f32[N], w: f32[N], y_grad: f32[N]) -> (x_grad: f32[N], w_grad: f32[N]) {
    x_grad[i] = w[i] * y_grad[i]
    w_grad[i] = x[i] * y_grad[i]
}'''
"""
FORMS = """
def training_step(by):
    model = torch.nn.Linear(2, 1)
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1), model.weight.detach().clone()
    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss
    by(step)(torch.ones(3, 2))
    like(model.weight, before - 0.3)

def grad(by):
    def function(x):
        z = x**4
        return torch.autograd.grad(z.sum(), x)[0]
    like(by(function)(x), [4.0, 32.0])

def grad_after_a_break(by):
    def function(x):
        z = x**4
        break_graph()
        return torch.autograd.grad(z.sum(), x)[0] * 2
    like(by(function)(x), [8.0, 64.0])

def backward_after_a_break(by):
    def function(x):
        z = (x**4).sum()
        break_graph()
        z.backward()
        return z * 1
    by(function)(x)
    like(x.grad, [4.0, 32.0])

def compiled_inside(by):
    inner = by(lambda x: x.sin() * 2)
    def function(x):
        y = inner(x)
        break_graph()
        y.sum().backward()
        return y + 1
    by(function)(x)
    like(x.grad, 2 * x.cos())

def compiled_before(by):
    inner = by(lambda x: x**4)
    inner(x).sum().backward()
    x.grad = None
    def function(x):
        y = inner(x)
        break_graph()
        return torch.autograd.grad(y.sum(), x)[0] * 1
    like(by(function)(x), [4.0, 32.0])

def hook(by):
    function, other = by(lambda x: x**4), by(lambda g: g * 3)
    y = function(x)
    y.register_hook(other)
    y.sum().backward()
    like(x.grad, [12.0, 96.0])

def in_a_disabled_function(by):
    inner = torch.compiler.disable(lambda z, x: torch.autograd.grad(z.sum(), x)[0])
    like(by(lambda x: inner(x**4, x) + 1)(x), [5.0, 33.0])

def checkpointed(by):
    def function(x):
        y = torch.utils.checkpoint.checkpoint(lambda t: t.sin() * 2, x, use_reentrant=False)
        break_graph()
        y.sum().backward()
        return y + 1
    by(function)(x)
    like(x.grad, 2 * x.cos())

def symbolic(by):
    def function(x):
        y = x.sin()
        break_graph()
        y.sum().backward()
        return y + 1
    for size in (3, 5):
        given = torch.ones(size, requires_grad=True)
        by(function, dynamic=True)(given)
        like(given.grad, given.cos())

def operator(by):
    def function(x):
        y = scaled(x, w)
        break_graph()
        z = scaled(y, w).sum()
        return torch.autograd.grad(z, x)[0] * 2
    like(by(function)(x), [2.0, 2.0])

def operator_in_a_hook(by):
    def function(x):
        y = x * 3
        break_graph()
        y.register_hook(lambda g: scaled(g, w))
        z = (y * y).sum()
        z.backward()
        return z
    by(function)(x)
    like(x.grad, [18.0, 36.0])

def op_of_tilec(by):
    like(by(lambda x: doubled(x.detach()) + 1)(x), [3.0, 5.0])

def op_made_inside(by):
    def function(x):
        return tilec.compile(f"op made(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] * {next(numbers)} }}")(x.detach()) + 1
    assert by(function)(x)[0] >= 8

def report_inside(by):
    like(by(lambda x: x + len(tilec.torch.report().graphs) * 0 + 1)(x), [2.0, 3.0])

def wait_inside(by):
    def function(x):
        tilec.torch.wait()
        return x + 1
    like(by(function)(x), [2.0, 3.0])

def reset_inside(by):
    def function(x):
        torch._dynamo.reset()
        return x + 1
    like(by(function)(x), [2.0, 3.0])

scaled = tilec.torch.op(SCALED, backward=BACK, name="tests::scaled_untraced")
doubled = tilec.compile("op doubled(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2 }")
numbers = iter(range(7, 99))
w = torch.ones(2, requires_grad=True)
forms = [f for n, f in dict(globals()).items() if callable(f) and f.__module__ == "__main__" and n not in
         ("like", "compiled", "register")]
for name in sys.argv[1:]:
    for form in forms:
        torch._dynamo.reset()
        compiled(lambda x: x + 1)(torch.ones(2))
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        print(name, form.__name__, flush=True)
        form((lambda f, **options: f) if name == "none" else lambda f, name=name, **options: compiled(f, name, **options))
print("all done", len(forms))
sys.stdout.flush()
os._exit(0)
"""


def child(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BEGIN + text, *arguments], capture_output=True, text=True, timeout=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("tilec", "aot_eager", "eager", "none"), ("inductor",)], ids=" ".join)
def test_gradients_inside_compiled_functions(names):
    """After tilec was used, too. PyTorch calls what tilec gave it while a lock is held that a trace asks for."""
    try:
        ran = child(FORMS, *names)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"it hangs after: {(late.stdout or b'').decode()[-200:]}") from None
    assert ran.returncode == 0 and "all done 17" in ran.stdout, (ran.stdout + ran.stderr)[-3000:]
    assert "Dynamo" not in ran.stderr, ran.stderr  # it warns of code that is no model's


EXPECTED = [name for name in modules() if name not in (*TRACED, "tilec", "tilec.torch")]


def test_dynamo_leaves_out_the_files_of_tilec():
    from torch._dynamo import trace_rules

    import tilec.torch.backend  # noqa: F401

    installed = [name for name in CALLED if importlib.util.find_spec(name)]
    for name in (*EXPECTED, *TRACED, *installed, "lark.lark", "numba.core.dispatcher"):
        skipped = trace_rules.check_file(importlib.util.find_spec(name).origin, is_inlined_call=True).skipped
        assert skipped == (name not in TRACED), name


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False], ids=["Dynamo first", "tilec first"])
def test_dynamo_is_configured_whenever_it_is_imported(early):
    text = f"""
import importlib.util, sys
if {early}: import torch._dynamo
import tilec.api
from torch._dynamo import trace_rules
for name in {EXPECTED}:
    assert trace_rules.check_file(importlib.util.find_spec(name).origin).skipped, name
"""
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_what_is_called_under_a_lock_of_dynamos_is_not_traced():
    assert warm_up._begin._torchdynamo_disable and warm_up._end._torchdynamo_disable


SETTINGS = """
import gc, threading, warnings
import torch._dynamo, torch._functorch.config, torch._inductor.config
from torch._dynamo.callback import callback_handler

def settings():
    found = {}
    for config in (torch._dynamo.config, torch._functorch.config, torch._inductor.config):
        found |= {f"{config.__name__}.{k}": repr(v) for k, v in config.get_config_copy().items()}
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    for name in ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled",
                 "fp16_bf16_reduction_math_sdp_allowed", "preferred_blas_library", "preferred_linalg_library"):
        found[name] = getattr(cuda, name)()
    for name in ("get_num_threads", "get_num_interop_threads", "get_default_dtype", "is_grad_enabled", "is_inference_mode_enabled",
                 "are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "is_autocast_enabled",
                 "get_default_device"):
        found[name] = getattr(torch, name)()
    found["flags"] = cuda.matmul.allow_tf32, cuda.matmul.allow_bf16_reduced_precision_reduction, cudnn.allow_tf32, cudnn.benchmark
    found["modes"] = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    found["hooks"] = repr([v for n, v in vars(torch.nn.modules.module).items() if n.startswith("_global_")])
    found["decompositions"] = len(torch._decomp.decomposition_table)
    found["tracing"] = torch._guards.TracingContext.try_get(), torch._guards.CompileContext.try_get()
    found["frames"] = torch._C._dynamo.eval_frame.set_eval_frame(None)
    found["python"] = (gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_freeze_count() > 10_000,
                       sys.getrecursionlimit(), sys.gettrace(), warnings.filters[:], len(sys.meta_path))
    found["environment"] = dict(os.environ)
    found["callbacks"] = callback_handler.start_callbacks[:], callback_handler.end_callbacks[:]
    return found

def meet(name):
    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x).sum(), backend=name)
    for size in (4, 8):
        function(torch.randn(1, 2, size, 16, requires_grad=True)).backward()

meet("aot_eager")
before = settings()
meet("tilec")
meet("tilec")
try:
    compiled(lambda x: torch.linalg.qr(x)[0] + 1, options={"strict": True})(torch.randn(4, 4))
    raise AssertionError("it is strict")
except Exception as error:
    assert "strict" in str(error), error
scaled = tilec.torch.op(SCALED, backward=BACK, name="tests::scaled_settings")
scaled(torch.ones(3, requires_grad=True), torch.ones(3)).sum().backward()
waiting = settings()
assert all(c._torchdynamo_disable for c in (*waiting.pop("callbacks")[0], *callback_handler.end_callbacks))
calm = {k: v for k, v in before.items() if k != "callbacks"}
assert waiting == calm, [(k, v, calm[k]) for k, v in waiting.items() if v != calm[k]]
compiled(lambda x: x - 1, "aot_eager")(torch.ones(3))
after = settings()
assert after == before, [(k, v, before[k]) for k, v in after.items() if v != before[k]]
print("all the same", len(after))
"""


@pytest.mark.slow
def test_settings_are_as_they_were():
    """After graphs of tilec, one that fails, and an operator. Its callbacks wait for one more trace, and are gone then."""
    ran = child(SETTINGS)
    assert ran.returncode == 0 and "all the same" in ran.stdout, ran.stderr[-3000:]
