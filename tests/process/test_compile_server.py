"""Compilers in processes of their own: answers, several at once, and what happens when a process ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilec.process import compile_server
from tilec.process.workers import Abandoned, workers

pytestmark = pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")

MODULE = """
import os, sys, threading, time
{before}
def prepare():
    {prepare}
def answer(request, say):
    {answer}
    return request | {{"process": os.getpid(), "parent": os.getppid(), "torch": sys.modules.get("torch", 0),
                       "session": os.getsid(0)}}
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Writes a module that compiles, and gives its name; its process ends with the test."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(prepare="pass", answer="pass", before=""):
        made.append(f"compiler_{os.getpid()}_{len(made)}_{time.monotonic_ns()}")
        (tmp_path / f"{made[-1]}.py").write_text(MODULE.format(prepare=prepare, answer=answer, before=before))
        return made[-1]

    yield write
    for kind in made:
        compile_server._refused.discard(kind)
        if (server := compile_server._running.pop(kind, None)) is not None:
            compile_server._end(server)


def gone(process: int, seconds: float = 60.0) -> bool:
    """Whether a process ends in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{process}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_a_fork_of_another_process_answers_again_and_again(compiler):
    kind = compiler()
    one, two = (compile_server.ask(kind, {"n": n, "text": "é" * 300_000}) for n in range(2))
    assert (one["n"], two["n"]) == (0, 1) and one["text"] == "é" * 300_000
    assert one["process"] == two["process"] and one["parent"] == compile_server._running[kind].process.pid
    assert one["session"] == one["parent"] != os.getsid(0), "Ctrl-C in a terminal would reach it"


def test_several_answer_at_once(compiler, tmp_path):
    """Each waits until all have begun."""
    wait = f"open({str(tmp_path)!r} + f'/{{{{os.getpid()}}}}.begun', 'w').close()\n    end = time.monotonic() + 60\n"
    wait += f"    while len([f for f in os.listdir({str(tmp_path)!r}) if f.endswith('.begun')]) < 3:\n"
    wait += "        assert time.monotonic() < end\n        time.sleep(0.01)"
    kind = compiler(answer=wait.replace("{{", "{").replace("}}", "}"))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda n: compile_server.ask(kind, {"n": n}), range(3)))
    assert [f["n"] for f in found] == [0, 1, 2] and len({f["process"] for f in found}) == 3


def test_torch_stays_away_there_and_nothing_changes_here(compiler):
    before = sys.modules.get("torch", 0)
    assert compile_server.ask(compiler(), {})["torch"] is None
    assert sys.modules.get("torch", 0) is before


@pytest.mark.parametrize(
    "broken",
    [
        {"before": "import no_such_module"},
        {"prepare": "raise ValueError"},
        {"prepare": "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()"},
        {"answer": "os._exit(3)"},
        {"answer": "raise ValueError"},
        {"answer": "os.kill(os.getpid(), 11)"},
    ],
)
def test_where_there_is_no_answer_the_caller_learns_and_nothing_starts_again(compiler, broken):
    kind = compiler(**broken)
    assert compile_server.ask(kind, {}) is None and compile_server.start(kind) is None


def test_processes_that_ended_are_started_again(compiler):
    kind = compiler()
    first = compile_server.ask(kind, {})
    os.kill(first["process"], signal.SIGKILL)
    second = compile_server.ask(kind, {})
    assert second["process"] != first["process"] and gone(first["parent"])
    os.kill(second["parent"], signal.SIGKILL)
    os.kill(second["process"], signal.SIGKILL)
    assert compile_server.ask(kind, {})["parent"] not in (first["parent"], second["parent"])


def test_without_work_they_end(compiler):
    kind = compiler(before="from tilec.process import compile_server; compile_server.IDLE = 0.2")
    first = compile_server.ask(kind, {})
    assert gone(first["process"]) and gone(first["parent"])
    assert compile_server.ask(kind, {})["parent"] != first["parent"]


def test_a_fork_of_the_caller_has_processes_of_its_own(compiler):
    kind = compiler()
    first = compile_server.ask(kind, {})
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = compile_server.ask(kind, {})
            code = 0 if own["parent"] != first["parent"] else 2
            compile_server._end_all()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compile_server.ask(kind, {})["process"] == first["process"]


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_they_end_with_the_caller(compiler, tmp_path, end):
    kind = compiler()
    code = (
        f"import json, os, sys; sys.path.insert(0, {str(tmp_path)!r}); from tilec.process import compile_server as c\n"
    )
    code += f"print(json.dumps(c.ask({kind!r}, {{}})), flush=True)\n{end}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert gone(found["process"]) and gone(found["parent"]) and done.stderr == ""


def test_threads_that_meet_a_process_that_ended(compiler):
    kind = compiler()
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(lambda n: compile_server.ask(kind, {"n": n}), range(8)))
        for process in {f["process"] for f in first} | {first[0]["parent"]}:
            os.kill(process, signal.SIGKILL)
        start = threading.Barrier(4)

        def again(n):
            start.wait()
            return compile_server.ask(kind, {"n": n})

        assert [f["n"] for f in pool.map(again, range(4))] == [0, 1, 2, 3]


def test_those_who_wait_learn_that_it_is_given_up(compiler, tmp_path):
    """Ctrl-C ends the processes, at work or not; later ones are asked as ever."""
    begun = tmp_path / "begun"
    kind = compiler(answer=f"open({str(begun)!r}, 'w').write(str(os.getpid()))\n    time.sleep(request['seconds'])")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(compile_server.ask, kind, {"seconds": 60})
        end = time.monotonic() + 60
        while not (begun.exists() and begun.read_text()):
            assert time.monotonic() < end
            time.sleep(0.01)
        compile_server.give_up()
        assert waiting.result(60) is None and gone(int(begun.read_text()))
    assert compile_server.ask(kind, {"seconds": 0})["seconds"] == 0


def test_an_interrupted_caller_can_ask_again(compiler):
    """The fork that it asked ends after its work."""
    kind = compiler(answer="time.sleep(request['sleep'])")
    first = compile_server.ask(kind, {"sleep": 0})
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compile_server.ask(kind, {"sleep": 1})
    assert compile_server.ask(kind, {"sleep": 0})["parent"] == first["parent"]
    assert gone(first["process"])


def test_spare_workers_end_where_it_is_given_up(compiler, tmp_path):
    """They do not compile what nobody waits for, in the process that was interrupted."""
    begun = tmp_path / "begun"
    kind = compiler(answer=f"open({str(begun)!r}, 'w').close()\n    time.sleep(60)")
    with workers(1, "ahead", spare=True) as pool:
        one, two = (pool.submit(compile_server.ask, kind, {}) for _ in range(2))
        end = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        compile_server.give_up()
        assert isinstance(one.exception(60), Abandoned) and two.cancelled()


def test_a_fork_of_the_caller_holds_no_connection_of_its_threads(compiler):
    """One on which a thread waits at the time ends with the caller's end of it."""
    kind = compiler(answer="time.sleep(request['sleep'])")
    first = compile_server.ask(kind, {"sleep": 0})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(compile_server.ask, kind, {"sleep": 1})
        while not compile_server._running[kind].busy:
            time.sleep(0.01)
        time.sleep(0.2)  # in which it sends, and waits
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            assert waiting.result()["process"] == first["process"]
            compile_server._end(compile_server._running.pop(kind))
            assert gone(first["process"])
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_kernels_for_gpus_compile_there(monkeypatch):
    """Though that process lacks modules that are for launches: the caller must not have to compile after all."""
    pytest.importorskip("numba_cuda_mlir")
    from tools.cuda_kernels import SHARED, kernel

    from tilec.runtime.cuda import compile as cuda_compile

    def never(**wanted):
        raise AssertionError("compiled by the caller")

    monkeypatch.setattr(cuda_compile, "_compile_here", never)
    body = SHARED + "store_f8e4m3(y + tid, sin_f32(load_bf16(x + tid * 2)))\nwarp_barrier()"
    names = ("load_bf16", "sin_f32", "store_f8e4m3", "warp_barrier")
    source = kernel(body, *names, parameters="x, y")
    assert "cvt.rn.satfinite.e4m3x2.f32" in cuda_compile._to_ptx(source, "kernel", "sm_90a", 128, None, 1)
