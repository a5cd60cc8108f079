"""`einsum`, which computes a product by its spelling, and `op`, which makes a Python function's docstring a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, Never, overload

from tilec.api import Op, compiled
from tilec.core.varying import Varying
from tilec.driver import arguments
from tilec.driver.frontend import read_program
from tilec.driver.function import Function, check_parameters, chosen_op, source_of
from tilec.driver.spelled import Spelled
from tilec.dsl.einsum import Spelling, by_lists, spelling
from tilec.process.forking import compiling

MOST_SPELLINGS = 256
"""Spellings of which the compiled ops are kept, the latest ones."""


def einsum(*operands: object, out: object = None, target: str | None = None, **unknown: Never) -> Any:
    """Sums of products of arrays, as `np.einsum` has them: `einsum("ij,jk->ik", a, b)`.

    Operands come behind a spelling, or each with a list of its indices: `einsum(a, [0, 1], b, [1, 2], [0, 2])`. Without an arrow,
    the result has the indices that stand once, in the order of the alphabet. `...` stands for dimensions without an index. A
    dimension of size 1 meets any size. The result has the operands' type, the wider one where they differ; sums of 16-bit floats
    are computed in f32. `out` is that of a call of an op, `target` that of `compile`.

    Several calls by one spelling are faster through `tilec.compile("ij,jk->ik")`, which does not look the spelling up.

    Raises CallError for a spelling or shapes that do not fit; TypeError for an option that does not exist.
    """
    arguments.no_unknown("einsum", unknown)
    arguments.text_option("target", target)
    of, arrays = (
        (spelling(operands[0]), operands[1:]) if operands and isinstance(operands[0], str) else by_lists(operands)
    )
    return _spelled(of, target)(*arrays, out=out)


@lru_cache(MOST_SPELLINGS)
def _spelled(of: Spelling, target: str | None) -> Op:
    return compiled(Spelled(of), target=target)


@overload
def op(function: Function, /) -> Op: ...
@overload
def op(
    *, sizes: Mapping[str, int] | None = None, target: str | None = None, schedule: str | Path | None = None,
    deferred_checks: bool = False, path: str | Path | Sequence[str | Path] = (),
    varies: Mapping[str, tuple[int, ...] | Varying] | Collection[str] | None = None, invariant: Collection[str] = (),
) -> Callable[[Function], Op]: ...  # fmt: skip
def op(
    function: Function | None = None, /, *, sizes: Mapping[str, int] | None = None, target: str | None = None,
    schedule: str | Path | None = None, deferred_checks: bool = False, path: str | Path | Sequence[str | Path] = (),
    varies: Mapping[str, tuple[int, ...] | Varying] | Collection[str] | None = None, invariant: Collection[str] = (),
    **unknown: Never,
) -> Op | Callable[[Function], Op]:  # fmt: skip
    """Makes a Python function an op, by the program in its docstring: a decorator, alone or with the options of `compile`.

        @tilec.op
        def softmax(x: "f32[M, N]") -> "y: f32[M, N]":
            \"\"\"
            e[i, j] = exp(x[i, j] - max[k](x[i, k]))
            y[i, j] = e[i, j] / sum[k](e[i, k])
            \"\"\"

    Annotations are types of the language, as text or as the text in `Annotated[np.ndarray, "f32[M, N]"]`. The result's has its
    name. Without them, the docstring is a whole program, in full or short form, whose inputs are the function's parameters. The
    body is not run. Messages about mistakes have their positions in the Python file.

    Raises TileError for mistakes in the program, CallError for a function that is none, or for wrong options.
    """
    arguments.no_unknown("op", unknown)

    def decorated(function: Function) -> Op:
        text = source_of(function, arguments.folders(path))
        with compiling():
            program = read_program(text)
            name = chosen_op(function, program)
            check_parameters(function, program, name)
        made = compiled(
            program,
            op=name,
            sizes=sizes,
            target=target,
            schedule=schedule,
            deferred_checks=deferred_checks,
            varies=varies,
        )
        update_wrapper(made, function)
        return made

    return decorated if function is None else decorated(function)


__all__ = ["einsum", "op"]
