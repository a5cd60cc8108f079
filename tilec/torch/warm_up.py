"""Warm-up: the compilers start when Dynamo begins to trace, before anybody knows what they will compile.

The processes that compile start: they load for a second. Where no graph reaches this back end, or all of a graph's programs are
in the cache, they end with the trace. Until then garbage collections leave out what is there already: PyTorch's tracing makes many
(0.4 s of GPT-2's inference, 0.8 s of its training step; measured once, by hand). After a trace for another back end, neither is
done until this one is called again.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch._dynamo import disable
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

from tilec.driver.recipe import end_unused_compilers, load_compilers
from tilec.process.collection import frozen

_expected = False
_kind = ""  # of the target whose compilers the current trace has started
_until_end = ExitStack()  # of the current trace


def expect() -> None:
    """Has the processes start with the next trace. `torch._dynamo.reset()` forgets it."""
    global _expected
    _expected = True
    for callbacks, own in ((callback_handler.start_callbacks, _begin), (callback_handler.end_callbacks, _end)):
        if own not in callbacks:
            callbacks.append(own)


# PyTorch calls these under a lock that a trace asks for. When a backward graph is compiled between the graphs of a function, Dynamo
# would trace them, and wait for itself.


@disable(reason="it is called under a lock of Dynamo's")
def _begin(about: CallbackArgs) -> None:
    global _expected, _kind
    if _expected and about.callback_trigger is CallbackTrigger.DYNAMO:
        _expected = False  # unless this trace calls `expect`
        _kind = "cuda" if torch.cuda.is_initialized() else "cpu"
        load_compilers(_kind)
        _until_end.enter_context(frozen())


@disable(reason="it is called under a lock of Dynamo's")
def _end(about: CallbackArgs) -> None:
    global _kind
    _until_end.close()
    if _kind:
        end_unused_compilers(_kind)
        _kind = ""
    if not _expected:  # nothing of tilec stays with PyTorch. It goes through these lists: they are replaced
        callback_handler.start_callbacks = [c for c in callback_handler.start_callbacks if c is not _begin]
        callback_handler.end_callbacks = [c for c in callback_handler.end_callbacks if c is not _end]
