"""PyTorch's own check of tracing, `aot_autograd_check`, with this back end in the place of the one that does nothing."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.testing._internal.optests import aot_autograd

from tests.pytorch.agreement import CRASHED, SKIPPED, WRONG, Outcome, counted
from tests.pytorch.samples import Case
from tilec.torch import reports
from tilec.torch.aot import tracing
from tilec.torch.backend import compilers
from tilec.torch.options import Options


def check(case: Case) -> Outcome:
    """Of fixed sizes, and with symbols for sizes."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    reports.forget()
    backward = any(isinstance(v, torch.Tensor) and v.requires_grad for v in case.values)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if case.refused or case.undefined:
                return Outcome(case.name, SKIPPED, "nothing to compare")
            for dynamic in (False, True):
                plain = _problem(case, dynamic, contextlib.nullcontext())
                if plain:
                    continue  # as in eager mode, or as PyTorch traces it
                if problem := _problem(case, dynamic, _through_tilec()):
                    verdict = WRONG if "different" in problem else CRASHED
                    return Outcome(case.name, verdict, f"dynamic={dynamic}: {problem}", backward)
            verdict, reasons = counted()
            return Outcome(case.name, verdict, backward=backward, reasons=reasons)
    finally:
        logging.disable(before)
        reports.forget()


def _close(one: Any, other: Any, msg: str | None = None) -> None:
    """Kernels sum in another order than eager mode does."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=msg)


def _problem(case: Case, dynamic: bool, within: Any) -> str:
    try:
        with within:
            aot_autograd.aot_autograd_check(
                lambda *v: case.call(*v), case.given(), {}, dynamic, assert_equals_fn=_close, check_gradients="auto"
            )
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:600]}; {str(error.__cause__ or '')[:300]}"
    return ""


@contextlib.contextmanager
def _through_tilec() -> Iterator[None]:
    def compiled(function: Callable, _fw: Any, _bw: Any, dynamic: bool, **unused: Any) -> Callable:
        inner = compiled_function(function, **compilers(Options(fallback_random=True)), dynamic=dynamic)

        def call(args: Any) -> Any:
            with tracing():
                return inner(args)

        return call

    compiled_function = aot_autograd.compiled_function
    with mock.patch.object(aot_autograd, "compiled_function", compiled):
        yield
