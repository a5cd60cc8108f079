"""A program that is spelled as einsum has it: its text follows from the types and shapes of each call's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError, Source
from tilec.driver.frontend import Declared, Program, read_program
from tilec.dsl.einsum import NAME, Spelling, operand_names, program, spelling

if TYPE_CHECKING:
    from tilec.driver.recipe import Signature


class Spelled:
    """A spelling in the place of a `Program`."""

    def __init__(self, of: Spelling):
        self.spelling = of
        self.source = Source(f"<{NAME}>", str(of))

    @classmethod
    def read(cls, text: str, refused: Mapping[str, object]) -> Spelled:
        """`refused`: options that only go with a program, which must be empty. Raises CallError."""
        found = cls(spelling(text))
        for option, value in refused.items():
            if value:
                hint = f"write the program, which takes it: `tilec new '{found.spelling}'` prints one"
                raise CallError(f"`{option}` does not go with a spelling of einsum", hint=hint)
        return found

    def op(self, name: str | None) -> Declared:
        """Its only op, whose operands may have any type. Raises CallError for another name."""
        if name not in (None, NAME):
            raise CallError(
                f"'{self.spelling}' has no op '{name}'", hint="a spelling of einsum has one op: leave `op` out"
            )
        return Declared(NAME, tuple((operand, None) for operand in operand_names(len(self.spelling.operands))))

    def at(self, inputs: Signature | None) -> Program:
        """The program for operands of these types and shapes. Raises CallError where they do not fit."""
        if inputs is None:
            hint = f"call it, or write the program: `tilec new '{self.spelling}'` prints one"
            raise CallError(f"'{self.spelling}' says no types: it is compiled when it is called", hint=hint)
        shapes = [[int(n) for n in shape] for _, shape in inputs]
        return read_program(Source(self.source.name, program(self.spelling, [dtype for dtype, _ in inputs], shapes)))
