"""Compilers in processes of their own. They load while this process plans, and several compile at a time.

Numba's compilers take a second to import, hold Python's lock while they work, and the one for GPUs imports torch.
Therefore a process for each kind of compiler starts when a program must be compiled. It loads the compiler and forks; the
forks answer requests. All of them end with this process, or after ten minutes without work. If no such process can start,
`ask` says so, and the caller compiles itself.

Requests and replies are JSON, over one socket for each fork. Before its reply a fork may send parts of it, as soon as they are
there. It may have forks of its own, which work beside it, if the module's
`may_fork` says so (`forks.py`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from tilec.process import forks, workers
from tilec.process.messages import receive, send

OnPart = Callable[[Any], None]

IDLE = 600.0  # seconds
_POSSIBLE = sys.platform.startswith("linux") and not getattr(sys, "frozen", False)


class _Server:
    """The process that loads the compiler of the module `kind`, and connections to those forks that have nothing to do."""

    def __init__(self, kind: str):
        self.control, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from tilec.process.compile_server import serve; "
        code += f"serve({theirs.fileno()}, {kind!r})"
        nowhere = subprocess.DEVNULL
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=nowhere, stdout=nowhere, stderr=nowhere,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        self.free: list[socket.socket] | None = [self._fork()]
        self.busy: set[socket.socket] = set()
        self.given_up, self.used = False, False

    def _fork(self) -> socket.socket:
        """A connection to a new fork, which begins once the compiler is loaded."""
        mine, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"\0"], [theirs.fileno()])
        return mine

    def take(self) -> socket.socket:
        with _lock:
            connection = self.free.pop() if self.free else self._fork()
            self.used = True
            self.busy.add(connection)
            return connection

    def answer(self, text: bytes, on_part: OnPart) -> dict[str, Any] | None:
        """The reply to a request, of which parts may be passed on before; None where the process is gone."""
        connection = reply = None
        try:
            connection = self.take()
            send(connection, text)
            while (message := receive(connection)) and "part" in (received := json.loads(message)):
                on_part(received["part"])
            reply = received if message else None
        except OSError:
            pass
        finally:
            if connection is not None:
                self._give_back(connection, reply is not None)
        return reply

    def _give_back(self, connection: socket.socket, answered: bool) -> None:
        """A fork that has not answered ends by the end of its connection: whoever asked it was interrupted, or it is gone."""
        with _lock:
            self.busy.discard(connection)
            if answered and self.free is not None:
                self.free.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """With this the processes end that are not at work."""
        for each in (self.control, *(self.free or ())):
            each.close()
        self.free = None

    def forget(self) -> None:
        """In a fork of the caller: closes all of its copies, those of connections on which other threads wait, too."""
        for each in (self.control, *(self.free or ()), *self.busy):
            if each.fileno() >= 0:
                os.close(each.detach())  # a file of a thread that is not here would keep it open
        self.free, self.process.returncode = None, 0  # not this one's to wait for


_lock = threading.Lock()
_running: dict[str, _Server] = {}
_promised: set[str] = set()
_refused: set[str] = set()
_over = False


def start(kind: str) -> _Server | None:
    """The process that compiles by the module `kind`; starts it if need be. Does not wait. None where there can be none."""
    with _lock:
        if _over:
            return None
        interpreter = os.path.basename(sys.executable or "")  # not a program that has Python inside
        if kind not in _running and kind not in _refused and _POSSIBLE and interpreter.startswith("python"):
            try:
                _running[kind] = _Server(kind)
            except (OSError, ValueError):
                _refused.add(kind)
        return _running.get(kind)


def promise(kind: str) -> None:
    """Has the process that compiles by the module `kind` start as soon as something is asked of it."""
    with _lock:
        _promised.add(kind)


def running(kind: str) -> bool:
    """Whether a process that compiles by the module `kind` was started or promised, and has not ended for good."""
    return kind in _running or kind in _promised


def end_unused(kind: str) -> bool:
    """Ends the process that compiles by the module `kind` if nothing was asked of it. Returns whether something was."""
    with _lock:
        _promised.discard(kind)
        server = _running.get(kind)
        if server is not None and not server.used:
            _end(_running.pop(kind))
            return False
        return server is not None


def ask(kind: str, request: dict[str, Any], on_part: OnPart = lambda part: None) -> dict[str, Any] | None:
    """What `answer` of the module `kind` says to a request, from another process; None where that cannot be had. `on_part` is
    called with each part of the reply that comes before it; where a process ends, another begins anew. Raises Abandoned in a worker
    that nobody waits for any more."""
    text = json.dumps(request).encode()
    for _ in range(2):  # it may have ended just now, for want of work
        if (server := start(kind)) is None or (reply := server.answer(text, on_part)) is not None or server.given_up:
            break
        with _lock:
            if _running.get(kind) is server:
                _end(_running.pop(kind))
    else:
        with _lock:
            _refused.add(kind)
    if server is None or reply is None:
        workers.check()
        return None
    return reply


def over() -> bool:
    """Whether the interpreter ends."""
    return _over


def give_up() -> None:
    """Ends all processes, at work or not; who waits for one gets None, and spare workers end. Later requests
    start others."""
    workers.abandon_all(spare=True)
    with _lock:
        while _running:
            server = _running.popitem()[1]
            server.given_up = True
            for connection in server.busy:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                os.killpg(server.process.pid, signal.SIGKILL)  # its forks, too
            _end(server)


workers.on_interruption(give_up)


def _end(server: _Server) -> None:
    server.close()
    server.process.kill()
    server.process.wait()


@atexit.register
def _end_all() -> None:
    """At the end of the interpreter. Threads that compile end before it: machine code that runs beside its end may crash."""
    global _over
    _over = True
    pools = workers.abandon_all(spare=False)
    give_up()
    for pool in pools:
        pool.join()


def _in_child() -> None:
    """A fork of the caller starts processes of its own; were its copies of sockets open, the others would not end."""
    global _lock
    _lock = threading.Lock()
    workers.forget()
    for server in _running.values():
        server.forget()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# ---- the other processes ---------------------------------------------------------------------------------------------


def serve(number: int, kind: str) -> None:
    """Forks whenever a socket comes over socket `number`, once a module's `prepare` is done. Never returns."""
    import gc
    import importlib

    for name in ("torch", "cupy"):  # numba-cuda-mlir imports them where they are, to know their arrays in launches
        sys.modules[name] = None  # type: ignore[assignment]
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=number)
    module = importlib.import_module(kind)
    module.prepare()
    gc.freeze()  # so that forks go on sharing this memory; garbage stays, to look for it takes 0.2 s
    if len(os.listdir("/proc/self/task")) > 1:  # forks would wait for threads that they lack
        os._exit(1)
    control.settimeout(IDLE)
    with suppress(OSError):
        while (received := socket.recv_fds(control, 1, 1))[0]:
            if os.fork() == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(module, socket.socket(fileno=received[1][0]))
            os.close(received[1][0])
    os._exit(0)


def _answer(module: ModuleType, connection: socket.socket) -> None:
    """Answers requests by `answer` of a module, as long as there are any. Never returns."""
    import gc

    connection.settimeout(IDLE)
    forks.allow(hasattr(module, "may_fork") and module.may_fork())
    try:
        while text := receive(connection):
            while not _answered(module, json.loads(text), connection):
                forks.allow(False)  # a fork that went on has failed
            gc.collect()  # while nobody waits
    finally:
        os._exit(0)


def _answered(module: ModuleType, request: Any, connection: socket.socket) -> bool:
    """Whether this process has answered, or a fork for it. In such a fork this does not return."""

    def send_part(part: Any) -> None:
        send(connection, json.dumps({"part": part}).encode())

    try:
        send(connection, json.dumps(module.answer(request, send_part)).encode())
        answered = True
    except forks.GoneOn as other:
        answered = other.answered()
    if forks.went_on():
        forks.end_fork(answered)
    forks.wait_for_forks()
    return answered
