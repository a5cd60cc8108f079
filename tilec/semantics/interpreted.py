"""Runs a specialised op by the interpreter, from its IR after some stage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilec.core.diagnostics import CallError
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.passes import NAMES
from tilec.semantics.interpreter import Fault, Unsupported, interpret


def interpret_stage(
    specialised: Specialised, texts: Mapping[str, str], stage: str, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Results by name, of the declared types; `texts` is the IR after every stage (`Lowered.texts`).

    Raises CallError for an unknown stage and what `interpret` raises; a Fault carries the stage, and the IR that
    went in, if `texts` has it.
    """
    if stage not in NAMES:
        raise CallError(f"there is no stage '{stage}'", hint=f"the stages are {', '.join(NAMES)}")
    try:
        found = interpret(texts[stage], arrays)
    except (Fault, Unsupported) as error:
        error.stage, error.ir = stage, texts.get(NAMES[max(0, NAMES.index(stage) - 1)], "")
        raise
    # integers in the IR have no sign
    return {t.name: a.view(ast.dtype_of(t).numpy) for t, a in zip(specialised.outputs, found.values(), strict=True)}
