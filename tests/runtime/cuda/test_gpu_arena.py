"""Memory that programs of a stream share, on a GPU: two programs, threads, growth, and graphs that were captured before it."""

from threading import Thread

import pytest

import tilec
from tilec.driver import fast_call
from tilec.runtime.cuda import arena

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def two_passes(scale: float):
    """An op of several kernels, with memory between them."""
    text = "op f(x: f32[M, N]) -> (y: f32[M, N]) { t[i, j] = sum[k](x[i, k] * x[j, k]) * S  y[i, j] = sum[k](t[i, k] * x[k, j]) }"
    return tilec.compile(text.replace("S", str(scale)))


def square(torch, n: int, seed: int = 0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-1, 2, (n, n), device="cuda", generator=generator).float()


def expected(torch, x, scale: float):
    """Whole numbers, which f32 has exactly: no error to allow for."""
    x = x.double()
    return (x @ x.T * scale @ x).float()


def held() -> int:
    return arena.workspaces.total()


def test_programs_hold_what_the_largest_takes(torch):
    """In increasing sizes, each is right again after the others grew the memory, and one memory holds them all."""
    stream, found = torch.cuda.Stream(), []
    sizes = [256, 384, 512, 768]
    before, free = held(), torch.cuda.mem_get_info()[0]
    with torch.cuda.stream(stream):
        ops = [(two_passes(n), square(torch, size)) for n, size in enumerate(sizes, 1)]
        for _ in range(3 * fast_call.CALLS_THRESHOLD):
            found = [(op(x), x, n) for n, (op, x) in enumerate(ops, 1)]
    stream.synchronize()
    assert all(torch.equal(y, expected(torch, x, n)) for y, x, n in found)
    taken = sum(op._latest.emitted.workspace for op, _ in ops)
    largest = max(op._latest.emitted.workspace for op, _ in ops)
    assert held() - before == largest < taken
    print(
        f"{taken} bytes of workspaces in {held() - before}; {free - torch.cuda.mem_get_info()[0]} bytes of the GPU were taken"
    )


def test_threads_with_different_programs_on_one_stream(torch):
    ops, stream, failed = [two_passes(n) for n in (1, 2, 3)], torch.cuda.Stream(), []
    inputs = [square(torch, 320 + 64 * n, n) for n in range(3)]
    wanted = [expected(torch, x, n) for n, x in enumerate(inputs, 1)]
    torch.cuda.synchronize()

    def work(n: int) -> None:
        with torch.cuda.stream(stream):
            results = [ops[n](inputs[n]) for _ in range(200)]
        stream.synchronize()
        if not all(torch.equal(y, wanted[n]) for y in results):
            failed.append(n)

    threads = [Thread(target=work, args=(n,)) for n in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed


def test_a_captured_graph_after_memory_has_grown(torch):
    """Replays go on beside programs of the stream, which take more memory than there was."""
    small, large, x, big = two_passes(1), two_passes(2), square(torch, 256), square(torch, 1024)
    small(x)
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        captured = small(x)
    for seed in range(5):
        x.copy_(square(torch, 256, seed))
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            graph.replay()
        others = [large(big) for _ in range(3)]
        again = small(x)
        torch.cuda.synchronize()
        assert torch.equal(captured, expected(torch, x, 1)) and torch.equal(again, captured)
        assert all(torch.equal(y, expected(torch, big, 2)) for y in others)


def test_two_graphs_of_one_stream_replay_at_once(torch):
    ops, inputs, graphs = [two_passes(1), two_passes(2)], [square(torch, 512, 1), square(torch, 512, 2)], []
    for op, x in zip(ops, inputs):
        op(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for op, x in zip(ops, inputs):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = op(x)
        graphs.append((graph, result, torch.cuda.Stream()))
    for _ in range(20):
        for graph, _, own in graphs:
            with torch.cuda.stream(own):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(graphs[n][1], expected(torch, inputs[n], n + 1)) for n in range(2))


def test_trees_of_graphs_share_one_memory(torch):
    """`reduce-overhead`: functions that are recorded hold together what the largest takes, not once for each."""
    from tilec.torch.backend import register

    register()
    torch._dynamo.reset()

    def scores(x, w, v):
        return torch.softmax(x @ w, -1).cumsum(0) @ v

    function = torch.compile(scores, backend="tilec", mode="reduce-overhead", dynamic=False)
    given = [[torch.randn(n, n, device="cuda") / n**0.5 for _ in range(3)] for n in (512, 768, 1024)]
    rounds, steps = [], [held()]
    with torch.no_grad():
        for _ in range(4):  # the first is not recorded, the second is
            rounds.append([function(*g).clone() for g in given])
            steps.append(held())
    torch.cuda.synchronize()
    assert steps[2] - steps[1] == steps[1] - steps[0] > 0
    assert steps[2] == steps[4]
    assert all(torch.equal(a, b) for later in rounds[1:] for a, b in zip(rounds[0], later))
    print("held after each round:", steps)
