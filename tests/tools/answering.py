"""Processes that answer requests and may fork."""

from __future__ import annotations

import json
import os
import socket

from tilec.process import compile_server
from tilec.process.messages import receive, send


class Answering:
    """A fork of this process that answers by `function(request, say)`, as those of `compile_server` do, and may fork."""

    def __init__(self, function, may_fork=True):
        self.answer, self.may_fork = function, lambda: may_fork
        self.connection, theirs = socket.socketpair()
        self.process = os.fork()
        if self.process == 0:
            self.connection.close()
            compile_server._answer(self, theirs)
        theirs.close()
        self.connection.settimeout(120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()
        os.waitpid(self.process, 0)

    def ask(self, request):
        """The parts, and the reply."""
        send(self.connection, json.dumps(request).encode())
        parts = []
        while "part" in (message := json.loads(receive(self.connection))):
            parts.append(message["part"])
        return parts, message
