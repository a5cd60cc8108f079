"""Calls by the short way: they look at everything that can change, and give what the general way gives."""

import ctypes
import sys
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import assert_within, to_gpu
from expectations import EXAMPLES

import tilec
from tilec import fast_call
from tilec.dtypes import DTYPES
from tilec.runtime import buffers, cpu_call, cuda_call, cuda_dlpack, cuda_driver
from tilec.runtime.cuda_launch import _Config

PROGRAM = (
    "op go(x: f32[M, N], w: f32[N]) -> (y: f32[M, N], s: f32[M]) { y[i, j] = x[i, j] * w[j]\n s[i] = sum[j](y[i, j]) }"
)


def arrays(rng, rows=3, columns=5):
    return rng.standard_normal((rows, columns), np.float32), rng.standard_normal(columns, np.float32)


def check(results, x, w):
    y, s = results
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x) * np.asarray(w))
    assert_within(PROGRAM, [x, w], [y, s])
    assert results.y is y and results.s is s


@pytest.fixture
def op(rng):
    """An op that has a short way for NumPy arrays of 3x5."""
    made = tilec.compile(PROGRAM)
    made(*arrays(rng))
    assert len(made._fast) == 1
    return made


def fake_driver(launched: list):
    """The driver's functions that machine code calls: they append addresses and stream of each launch; `state` says what
    they answer."""
    state = {"device": 0, "code": 0}

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
    def cuCtxGetDevice(device):
        if state["device"] is None:
            return 201
        device[0] = state["device"]
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
    def cuLaunchKernelEx(config, handle, parameters, extra):
        given = _Config.from_address(config)
        assert (handle, parameters, extra[0], extra[2], extra[4]) == (77, None, 1, 2, None)
        assert (tuple(given.grid), tuple(given.block), given.shared) == ((7, 1, 1), (128, 1, 1), 4096)
        assert (given.attributes, given.attribute_count) == (0x5000, 1)
        count = ctypes.c_size_t.from_address(extra[3]).value // 8
        launched.append((list((ctypes.c_int64 * count).from_address(extra[1])), given.stream))
        return state["code"]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def current_stream(kind, number, stream):
        assert (kind, number) == (cuda_dlpack.CPU, 0)
        stream[0] = 69
        return 0

    config = _Config((7, 1, 1), (128, 1, 1), 4096, 3, 0x5000, 1)
    launcher = SimpleNamespace(
        config=ctypes.addressof(config), kept=config, kernel=SimpleNamespace(entry="kernel", handle=ctypes.c_void_p(77))
    )
    return SimpleNamespace(
        cuCtxGetDevice=cuCtxGetDevice, cuLaunchKernelEx=cuLaunchKernelEx, current_stream=current_stream, state=state,
        kernel=lambda slots: (launcher, slots),
    )  # fmt: skip


def taken(op, *given, out=None) -> bool:
    return any(call(given, out, None) is not fast_call.NO for call, _, _ in op._fast)


def test_it_is_taken_and_right(op, rng):
    for _ in range(3):
        x, w = arrays(rng)
        assert taken(op, x, w)
        check(op(x, w), x, w)


def test_results_are_new_arrays(op, rng):
    first, second = op(*arrays(rng)), op(*arrays(rng))
    assert not np.shares_memory(first.y, second.y) and not np.shares_memory(first.s, second.s)


def test_read_only_arrays_are_inputs(op, rng):
    x, w = arrays(rng)
    x.flags.writeable = False
    assert taken(op, x, w)
    check(op(x, w), x, w)


def _off_by_a_byte(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(np.float32).reshape(x.shape)
    view[...] = x
    return view


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:2].copy(),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: x[::-1],
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: x.view(np.ma.MaskedArray),
        _off_by_a_byte,
        lambda x: x.tolist(),
        lambda x: np.broadcast_to(x[0], x.shape),
    ],
    ids=["shape", "order", "stride", "negative", "type", "bytes", "subclass", "alignment", "kind", "broadcast"],
)
def test_what_differs_goes_the_general_way(op, rng, change):
    x, w = arrays(rng)
    other = change(x)
    assert not taken(op, other, w)
    fresh = tilec.compile(PROGRAM)
    try:
        expected = fresh(other, w)
    except tilec.CallError as error:
        with pytest.raises(tilec.CallError) as raised:
            op(other, w)
        assert str(raised.value) == str(error)
        return
    for a, b in zip(op(other, w), expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments_is_checked(op, rng, count):
    x, w = arrays(rng)
    with pytest.raises(tilec.CallError, match="2 arguments"):
        op(*(x, w, w)[:count])


def test_streams_are_for_gpus(op, rng):
    with pytest.raises(tilec.CallError, match="stream="):
        op(*arrays(rng), stream=1)


def test_an_output_that_is_given_is_checked_and_written(op, rng):
    x, w = arrays(rng)
    y, s = np.empty_like(x), np.empty(3, np.float32)
    assert taken(op, x, w, out=(y, s)) and taken(op, x, w, out=[y, s])
    y[...], s[...] = 0, 0
    results = op(x, w, out=(y, s))
    assert results.y is y and results.s is s
    check(results, x, w)
    with pytest.raises(tilec.CallError, match="overlaps"):
        op(x, w, out=(x, s))


def test_outputs_that_do_not_fit_go_the_general_way(op, rng):
    x, w = arrays(rng)
    y, s, both = np.empty_like(x), np.empty(3, np.float32), np.empty(18, np.float32)
    other = np.empty((3, 10), np.float32)[:, ::2]
    for out in (
        (y,),
        y,
        (y, s, s),
        (y, w),
        (x, s),
        (both[:15].reshape(3, 5), both[14:17]),
        (other, s),
        (y.T.copy(), s),
    ):
        assert not taken(op, x, w, out=out)
    check(op(x, w, out=(other, s)), x, w)
    y.flags.writeable = False
    assert not taken(op, x, w, out=(y, s))
    with pytest.raises(tilec.CallError, match="read-only"):
        op(x, w, out=(y, s))


def test_calls_that_never_fit_do_not_pile_up(op, rng):
    x, w = arrays(rng)
    for _ in range(12):
        check(op(np.asfortranarray(x), w), x, w)
    assert len(op._fast) == 1 and taken(op, x, w)


def test_several_shapes_are_remembered_and_the_oldest_forgotten(rng):
    op = tilec.compile("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }")
    for n in range(1, 13):
        x = rng.standard_normal(n, np.float32)
        np.testing.assert_array_equal(op(x), x * 2)
    assert len(op._fast) == 8 and taken(op, x) and not taken(op, x[:1].copy())
    np.testing.assert_array_equal(op(x[:1].copy()), x[:1] * 2)


def test_the_latest_specialisation_is_the_one_that_ran(rng):
    op = tilec.compile("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }")
    for n in (4, 9, 4):
        op(rng.standard_normal(n, np.float32))
        assert f"tensor<{n}xf32>" in op.stages["build"]


def test_checks_of_the_program_still_raise(rng):
    op = tilec.compile("op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }")
    x, at = rng.standard_normal(6, np.float32), np.array([0, 5, 3], np.int32)
    for _ in range(3):
        np.testing.assert_array_equal(op(x, at), x[at])
    with pytest.raises(tilec.CallError):
        op(x, np.array([0, 6, 3], np.int32))
    np.testing.assert_array_equal(op(x, at), x[at])


def test_many_threads(op, rng):
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed)
        for _ in range(200):
            x, w = arrays(own)
            if not np.array_equal(op(x, w).y, x * w):
                wrong.append(seed)

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


class TestTorch:
    """With tensors on the CPU; what is different on a GPU is marked so."""

    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.fixture
    def op(self, torch, rng):
        made = tilec.compile(PROGRAM)
        made(*map(torch.from_numpy, arrays(rng)))
        assert len(made._fast) == 1
        return made

    def test_it_is_taken_and_right(self, op, torch, rng):
        for _ in range(3):
            x, w = map(torch.from_numpy, arrays(rng))
            assert taken(op, x, w)
            results = op(x, w)
            assert type(results.y) is torch.Tensor and not results.y.requires_grad
            check(results, x, w)

    @pytest.mark.parametrize("kind", ["shape", "stride", "type", "parameter", "numpy", "sparse", "negative bit"])
    def test_what_differs_is_not_taken(self, op, torch, rng, kind):
        x, w = map(torch.from_numpy, arrays(rng))
        other = {
            "shape": lambda: x[:2].clone(), "stride": lambda: x.t().contiguous().t(), "type": lambda: x.double(),
            "parameter": lambda: torch.nn.Parameter(x, requires_grad=False), "numpy": x.numpy, "sparse": x.to_sparse,
            "negative bit": lambda: torch.complex(x, x).conj().imag[:, :],
        }[kind]()  # fmt: skip
        assert not taken(op, other, w)

    def test_gradients_are_refused_each_time(self, op, torch, rng):
        x, w = map(torch.from_numpy, arrays(rng))
        with torch.no_grad():
            check(op(x.requires_grad_(), w), x.detach(), w)
        with pytest.raises(tilec.CallError, match="gradients"):
            op(x, w)
        check(op(x.detach(), w), x.detach(), w)

    @pytest.fixture(params=["machine code", "Python"])
    def gpu_call(self, request, torch, monkeypatch):
        """The way for GPUs with tensors on the CPU, and a driver that only notes what is launched: addresses and stream. Of
        x: f32[64, 96], w: f32[96] it makes y like x and s: f32[64]."""
        launched, x, w, y, s = [], torch.empty(64, 96), torch.empty(96), torch.empty(64, 96), torch.empty(64)
        native = request.param == "machine code"
        if native:
            driver = fake_driver(launched)
            monkeypatch.setattr(cuda_driver, "library", lambda: driver)
            monkeypatch.setattr(cuda_call, "CUDA", cuda_dlpack.CPU)
            found = cpu_call.exchange
            streams = {cpu_call.CURRENT_STREAM: ctypes.cast(driver.current_stream, ctypes.c_void_p).value}
            monkeypatch.setattr(cpu_call, "exchange", lambda field: streams.get(field) or found(field))
            program = SimpleNamespace(
                device=0, launches=lambda arrays: [driver.kernel(range(arrays)), driver.kernel([2, 1])]
            )
        else:
            driver = None
            monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
            program = SimpleNamespace(launches=lambda arrays: None)
            program.launch = lambda inputs, outputs, stream: launched.append(([*inputs, *outputs], stream))
        outputs = [("y", DTYPES["f32"], (64, 96)), ("s", DTYPES["f32"], (64,))]
        executable = SimpleNamespace(on=lambda device: program, outputs=outputs)
        if native:
            inputs = [(DTYPES["f32"], tuple(t.shape)) for t in (x, w)]
            new = [buffers.new_tensor(torch.empty(()), shape) for _, _, shape in outputs]
            call = fast_call.native(program, torch.Tensor, inputs, [tuple(o[1:]) for o in outputs], new, tuple)
        else:
            views = [buffers.view(t)._replace(device=-1) for t in (x, w)]
            call = fast_call.make(executable, [x, w], views, [y, s], tuple, lambda *_: None)
        yield SimpleNamespace(call=call, executable=executable, launched=launched, arrays=(x, w, y, s), driver=driver)

    def test_the_way_for_gpus_looks_at_the_same(self, torch, gpu_call):
        call, launched, (x, w, y, s) = gpu_call.call, gpu_call.launched, gpu_call.arrays
        made = call((x, w), None, None)
        assert [(r.shape, r.dtype, r.is_contiguous()) for r in made] == [(r.shape, r.dtype, True) for r in (y, s)]
        pointers = lambda *tensors: [t.data_ptr() for t in tensors]  # noqa: E731
        assert launched.pop(0) == (pointers(x, w, *made), 69)
        if gpu_call.driver:
            assert launched.pop(0) == (pointers(made[0], w), 69)
        assert call((x, w), [y, s], 5) == (y, s)
        assert launched.pop(0) == (pointers(x, w, y, s), 5)
        launched.clear()
        refused = [
            (x,), (x, w, w), (x[:32], w), (x.double(), w), (x.t().contiguous().t(), w), (x.numpy(), w),
            (x, torch.empty(97)[1:]), (x, torch.empty(96, requires_grad=True)), (x, torch.nn.Parameter(w)),
            (x, torch.zeros(96, dtype=torch.complex64).conj().imag),
        ]  # fmt: skip
        if gpu_call.driver:
            refused.append((x, w.to("meta")))
        assert all(call(arrays, None, None) is fast_call.NO for arrays in refused)
        for out in (y, (y,), (y, y), (x, s), (y, s[:32]), (y.t(), s), (y, w[:64]), "ys"):
            assert call((x, w), out, None) is fast_call.NO
        assert not launched
        with pytest.raises(TypeError, match="no CUDA stream"):
            call((x, w), None, "a stream")

    @pytest.mark.parametrize("gpu_call", ["machine code"], indirect=True)
    def test_another_gpu_is_current_or_none(self, torch, gpu_call):
        x, w, *_ = gpu_call.arrays
        for gpu_call.driver.state["device"] in (1, None):
            assert gpu_call.call((x, w), None, None) is fast_call.NO and not gpu_call.launched
        gpu_call.driver.state["device"] = 0
        assert gpu_call.call((x, w), None, None) is not fast_call.NO

    @pytest.mark.parametrize("gpu_call", ["machine code"], indirect=True)
    def test_what_the_driver_refuses_is_raised(self, torch, gpu_call, monkeypatch):
        x, w, y, s = gpu_call.arrays
        gpu_call.driver.state["code"] = 700
        monkeypatch.setattr(cuda_driver, "_error", lambda library, name, code: cuda_driver.CudaError(name, code))
        counts = [sys.getrefcount(a) for a in (y, s)]
        with pytest.raises(cuda_driver.CudaError, match="launch of kernel") as raised:
            gpu_call.call((x, w), (y, s), None)
        assert raised.value.code == 700 and [sys.getrefcount(a) for a in (y, s)] == counts
        gpu_call.driver.state["code"] = 0
        assert gpu_call.call((x, w), (y, s), None) == (y, s)

    @pytest.mark.parametrize("gpu_call", ["machine code"], indirect=True)
    def test_threads_launch_what_they_were_given(self, torch, gpu_call):
        """And nothing is kept of what calls are given."""
        x, w, *_ = gpu_call.arrays
        own = [(torch.empty(64, 96), torch.empty(64)) for _ in range(4)]

        def work(k):
            for _ in range(100):
                gpu_call.call((x, w), own[k], 100 + k)

        counts = [sys.getrefcount(a) for a in (x, w, *own)]
        threads = [Thread(target=work, args=(k,)) for k in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert [sys.getrefcount(a) for a in (x, w, *own)] == counts
        wanted = {100 + k: [t.data_ptr() for t in (x, w, *own[k])] for k in range(4)}
        assert len(gpu_call.launched) == 800
        assert all(
            given in (wanted[stream], [wanted[stream][2], wanted[stream][1]]) for given, stream in gpu_call.launched
        )

    @pytest.mark.parametrize("gpu_call", ["Python"], indirect=True)
    @pytest.mark.parametrize("better", ["machine code", None])
    def test_machine_code_comes_after_a_few_calls(self, gpu_call, monkeypatch, better):
        x, w, y, s = gpu_call.arrays
        op, executable = tilec.compile(PROGRAM), gpu_call.executable
        monkeypatch.setattr(fast_call, "native", lambda *_: better and (lambda *given: better))
        views = [buffers.view(t)._replace(device=-1) for t in (x, w)]
        first = fast_call.make(executable, [x, w], views, [y, s], tuple, op._replace)
        others = (lambda *given: fast_call.NO, executable, "other")
        op._fast = (others, (first, executable, "kind"))
        for _ in range(fast_call.FEW):
            assert op._fast[1][0] is first and op(x, w, out=(y, s)) == (y, s)
            assert first((x,), None, None) is fast_call.NO, "does not count"
        assert op._fast[0] is not others and op._fast[0] == others and op._fast[1][1:] == (executable, "kind")
        assert op._fast[1][0] is not first and op(x, w, out=(y, s)) == (better or (y, s))

    @pytest.mark.gpu
    def test_machine_code_on_a_gpu(self, torch, rng):
        op, x = tilec.compile("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }"), torch.arange(8.0).cuda()
        for _ in range(2 * fast_call.FEW):
            assert torch.equal(op(x), x * 2)
        assert type(short := op._fast[0][0]).__name__ == "builtin_function_or_method"
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

    @pytest.mark.gpu
    def test_on_a_gpu(self, torch, rng):
        op = tilec.compile(PROGRAM)
        for _ in range(3):
            x, w = (torch.from_numpy(a).cuda() for a in arrays(rng, 64, 96))
            results = op(x, w)
            assert results.y.is_cuda
            check(type(results)(*(r.cpu() for r in results)), x.cpu(), w.cpu())
        assert taken(op, x, w) and not taken(op, x.cpu(), w.cpu()) and not taken(op, x, w.cpu())
        shifted = torch.empty(64 * 96 + 1, device="cuda")[1:].view(64, 96).copy_(x)
        assert not taken(op, shifted, w)
        assert torch.equal(op(shifted, w).y, op(x, w).y)

    @pytest.mark.gpu
    def test_the_current_stream_is_used(self, torch):
        op, side = tilec.compile("op twice(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 2.0 }"), torch.cuda.Stream()
        x = torch.zeros(1 << 22, device="cuda")
        op(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            x.fill_(3.0)  # behind the sleep, on the same stream
            y = op(x)
        side.synchronize()
        assert bool((y == 6).all())

    @pytest.mark.gpu
    @pytest.mark.parametrize("name", ["softmax", "mlp"])
    def test_graphs_replay_on_new_data(self, torch, rng, name):
        example = EXAMPLES[name]
        op, given = tilec.compile(example.path, op=example.op), example.inputs(rng)
        tensors = [to_gpu(a) for a in given.values()]
        graph = op.graph(*tensors)
        for _ in range(3):
            for tensor, fresh in zip(tensors, example.inputs(rng).values()):
                tensor.copy_(to_gpu(fresh))
            expected = op(*tensors)
            assert torch.equal(graph.replay(), expected) and graph.result is graph.replay()

    @pytest.mark.gpu
    def test_pytorch_captures_calls(self, torch, rng):
        example = EXAMPLES["mlp"]
        op = tilec.compile(example.path, op=example.op)
        tensors = [to_gpu(a) for a in example.inputs(rng).values()]
        op(*tensors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = op(*tensors)
        tensors[0].mul_(0.5)
        graph.replay()
        assert torch.equal(captured, op(*tensors))

    @pytest.mark.gpu
    def test_checks_cannot_be_captured(self, torch):
        op = tilec.compile("op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }")
        with pytest.raises(tilec.CallError, match="cannot be captured"):
            op.graph(torch.zeros(4, device="cuda"), torch.zeros(3, dtype=torch.int32, device="cuda"))


def test_graphs_are_for_gpus(op, rng):
    with pytest.raises(tilec.CallError, match="on the GPU"):
        op.graph(*arrays(rng))
