"""Calls on a GPU: machine code, streams, threads, graphs."""

from threading import Thread

import numpy as np
import pytest
from conftest import to_gpu
from expectations import EXAMPLES
from tools.fast_calls import PROGRAM, arrays, check, taken

import tilec
from tilec.driver import fast_call

pytestmark = pytest.mark.gpu
TWICE = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }"
PRODUCT = "op mm(a: bf16[M, K], b: bf16[K, N]) -> (y: bf16[M, N]) { y[i, j] = sum[k](a[i, k] * b[k, j]) }"
PICK = "op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }"


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def by_machine_code(op, *tensors) -> fast_call.Call:
    for _ in range(2 * fast_call.CALLS_THRESHOLD):
        op(*tensors)
    (entry,) = op._fast
    assert type(entry[0]).__name__ == "builtin_function_or_method"
    return entry[0]


def example(name: str, rng: np.random.Generator) -> tuple:
    e = EXAMPLES[name]
    return tilec.compile(e.path, op=e.op), [to_gpu(a) for a in e.inputs(rng).values()]


def test_machine_code(torch):
    op, x = tilec.compile(TWICE), torch.arange(8.0).cuda()
    short = by_machine_code(op, x)
    y, side = torch.empty_like(x), torch.cuda.Stream()
    assert short((x,), y, side) is y and short((x,), (y,), side.cuda_stream) is y
    side.synchronize()
    assert torch.equal(y, x * 2) and short((x,), x, None) is short((x[1:],), None, None) is fast_call.NO
    assert short((x.cpu(),), None, None) is fast_call.NO
    found = []
    thread = Thread(target=lambda: found.append(op(x)))  # one that has no context yet
    thread.start()
    thread.join()
    assert torch.equal(found[0], x * 2)


@pytest.mark.parametrize("name", ["softmax", "linear", "mlp", "attention", "transformer_block", "embedding", "cumsum"])
def test_every_program_has_machine_code(torch, rng, name):
    """With memory between kernels, and checks; it gives what Python's calls gave, on new data, too."""
    op, given = example(name, rng)
    again, other = example(name, rng)
    first, second = op(*given), again(*other)
    short = by_machine_code(op, *given)
    for tensors, expected in ((given, first), (other, second), (given, first)):
        assert torch.equal(short(tuple(tensors), None, None), expected)


@pytest.mark.parametrize("name", ["product", "attention"])
def test_tensor_maps_by_machine_code(torch, name):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("kernels with tensor maps are for Hopper")
    shape, op = ((1024, 1024), tilec.compile(PRODUCT)) if name == "product" else ((1, 2, 256, 64), EXAMPLES[name])
    op = op if name == "product" else tilec.compile(op.path, op=op.op)
    first, second = (
        [torch.randn(shape, device="cuda").bfloat16() for _ in range(2 + (name != "product"))] for _ in "12"
    )
    short = by_machine_code(op, *first)
    assert any(k.maps for k in op._latest.emitted.kernels)
    for tensors in (first, second, first):
        assert torch.equal(short(tuple(tensors), None, None), op.graph(*tensors).result)


def test_several_kernels_in_threads_on_streams(torch, rng):
    op, given = example("mlp", rng)
    by_machine_code(op, *given)
    inputs = [[t * (1 + k / 8) if t.is_floating_point() else t for t in given] for k in range(6)]
    expected, right = [op(*i) for i in inputs], []
    shared = torch.cuda.Stream()
    torch.cuda.synchronize()

    def work(k):
        stream = shared if k < 3 else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                result = op(*inputs[k])
                stream.synchronize()
                right.append(torch.equal(result, expected[k]))

    threads = [Thread(target=work, args=(k,)) for k in range(len(inputs))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert right == [True] * 300


def test_a_thread_that_has_no_context_yet(torch, rng):
    op, given = example("mlp", rng)
    expected, found = op(*given), []
    y = torch.empty_like(expected)
    torch.cuda.synchronize()
    for more in (2 * fast_call.CALLS_THRESHOLD, 0):  # in Python, then by machine code
        thread = Thread(target=lambda: found.append(op(*given, out=y)))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert found.pop() is y and torch.equal(y, expected)
        [op(*given) for _ in range(more)]


@pytest.mark.parametrize("deferred", [False, True])
def test_checks_by_machine_code(torch, deferred):
    op = tilec.compile(PICK, deferred_checks=deferred)
    x, at = torch.arange(6.0).cuda(), torch.tensor([5, 0, 3], dtype=torch.int32).cuda()
    by_machine_code(op, x, at)
    bad = torch.tensor([0, 6, 3], dtype=torch.int32).cuda()
    for _ in range(3):
        with pytest.raises(tilec.CallError, match="6"):
            op(x, bad)
            op.check()
        assert torch.equal(op(x, at), x[at.long()])
    op.check()


def test_what_differs_is_not_taken(torch, rng):
    op = tilec.compile(PROGRAM)
    for _ in range(3):
        x, w = (torch.from_numpy(a).cuda() for a in arrays(rng, 64, 96))
        results = op(x, w)
        assert results.y.is_cuda
        check(type(results)(*(r.cpu() for r in results)), x.cpu(), w.cpu())
    by_machine_code(op, x, w)
    assert taken(op, x, w) and not taken(op, x.cpu(), w.cpu()) and not taken(op, x, w.cpu())
    shifted = torch.empty(64 * 96 + 1, device="cuda")[1:].view(64, 96).copy_(x)
    assert not taken(op, shifted, w)
    assert torch.equal(op(shifted, w).y, op(x, w).y)


def test_the_current_stream_is_used(torch):
    op, side = tilec.compile(TWICE), torch.cuda.Stream()
    x = torch.zeros(1 << 22, device="cuda")
    op(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)  # behind the sleep, on the same stream
        y = op(x)
    side.synchronize()
    assert bool((y == 6).all())


@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_graphs_replay_on_new_data(torch, rng, name):
    op, tensors = example(name, rng)
    graph = op.graph(*tensors)
    for _ in range(3):
        for tensor, fresh in zip(tensors, EXAMPLES[name].inputs(rng).values()):
            tensor.copy_(to_gpu(fresh))
        expected = op(*tensors)
        assert torch.equal(graph.replay(), expected) and graph.result is graph.replay()


@pytest.mark.parametrize("calls", [1, 2 * fast_call.CALLS_THRESHOLD], ids=["Python", "machine code"])
@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_pytorch_captures_calls(torch, rng, name, calls):
    """What the stream does after the capture does not disturb the graph's memory."""
    op, tensors = example(name, rng)
    for _ in range(calls):
        op(*tensors)
    graph, torch_stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=torch_stream):
        captured = op(*tensors)
    others = [t * 0.25 if t.is_floating_point() else t for t in tensors]
    tensors[0].mul_(0.5)
    for _ in range(3):
        op(*others)
        graph.replay()
    assert torch.equal(captured, op(*tensors))


def test_checks_cannot_be_captured(torch):
    op, x, at = tilec.compile(PICK), torch.zeros(4, device="cuda"), torch.zeros(3, dtype=torch.int32, device="cuda")
    with pytest.raises(tilec.CallError, match="cannot be captured"):
        op.graph(x, at)
    by_machine_code(op, x, at)
    with pytest.raises(tilec.CallError, match="cannot be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        op(x, at)
    torch.cuda.synchronize()
    assert torch.equal(op(x, at), x[at.long()])
