"""What of ONNX the language can say: functions by operator, and reasons for those it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilec.torch.program import Graph, Tensor, Unsupported, dtype_name

EXPRESSED: dict[str, Callable[[Graph, Node], Any]] = {}

PARAMETERS = {  # inputs that shapes and places depend on
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "Slice": (1, 2, 3, 4), "Pad": (1, 3), "Squeeze": (1,), "Split": (1,),
    "Unsqueeze": (1,), "CumSum": (1,), "CumProd": (1,), "ConstantOfShape": (0,), "Trilu": (1,), "OneHot": (1,),
    "CenterCropPad": (1,), "TopK": (1,), "Range": (1,), "Upsample": (1,), "Resize": (1, 2, 3), "MaxUnpool": (2,),
    "DFT": (1, 2), "STFT": (1, 3),
    **dict.fromkeys(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                     "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"], (1,)),
    "Dropout": (1, 2), "AffineGrid": (1,), "Col2Im": (1, 2),
}  # fmt: skip

NO_TENSORS = "sequences, maps or optional values"
RANDOM = "random numbers of a generator that ONNX leaves open: their bits cannot be compared"

_STRINGS = dict.fromkeys(
    ["StringSplit", "StringNormalizer", "StringConcat", "RegexFullMatch", "LabelEncoder"], "strings"
)
_SEQUENCES = dict.fromkeys(
    ["OptionalHasElement", "OptionalGetElement", "SequenceMap", "SequenceInsert", "SplitToSequence", "SequenceEmpty",
     "SequenceLength", "SequenceAt", "ConcatFromSequence", "SequenceConstruct", "Optional", "SequenceErase",
     "ZipMap"],
    NO_TENSORS,
)  # fmt: skip
_SHAPES = dict.fromkeys(["NonZero", "Unique", "Compress", "NonMaxSuppression"], "a result whose shape depends on data")
_RANDOM = dict.fromkeys(["Bernoulli", "RandomUniformLike", "RandomNormalLike"], RANDOM)
WHY_NOT: dict[str, str] = {
    **_STRINGS, **_SEQUENCES, **_SHAPES, **_RANDOM,
    "ImageDecoder": "files of images", "TreeEnsemble": "trees, walked from node to node as the data say",
    "MelWeightMatrix": "a table that sizes alone give",
}  # fmt: skip


class Computed(Unsupported):
    """A value is asked for that depends on inputs of the model: where these give shapes, they are made parameters."""

    def __init__(self, name: str, reason: str):
        super().__init__(reason)
        self.name = name


def expressed(*names: str):
    def add(function):
        EXPRESSED.update(dict.fromkeys(names, function))
        return function

    return add


class Node:
    """A node with its operands: tensors of the program, or parameters that are known."""

    def __init__(self, proto, graph: Graph, tensors, known, values):
        from onnx import helper

        self.proto, self.graph, self.tensors, self.known, self.values = proto, graph, tensors, known, values
        self.attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}

    @staticmethod
    def parameter_names(proto) -> Iterator[str]:
        for place in PARAMETERS.get(proto.op_type, ()):
            if place < len(proto.input) and proto.input[place]:
                yield proto.input[place]

    def __contains__(self, place: int) -> bool:
        return place < len(self.proto.input) and bool(self.proto.input[place])

    def __len__(self) -> int:
        return len(self.proto.input)

    def x(self, place: int = 0) -> Tensor:
        """An operand; what is known becomes an input of the program."""
        name = self.proto.input[place]
        if name not in self.tensors:
            if name not in self.known:
                raise Unsupported("a value that nothing defines")
            self.tensors[name] = self.graph.input(self.known[name])
        return self.tensors[name]

    def all(self) -> list[Tensor]:
        return [self.x(n) for n in range(len(self)) if n in self]

    def parameter(self, place: int, otherwise: Any = None) -> Any:
        """The value of an operand that is known before the program is made."""
        if place not in self:
            return otherwise
        name = self.proto.input[place]
        if name in self.known:
            return self.known[name]
        raise Computed(name, f"{self.proto.op_type}: a shape or positions that depend on data")

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        value = self.attributes.get(name, otherwise)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, place: int = 0) -> tuple[int, ...]:
        return self._value(place).shape

    def dtype(self, place: int = 0) -> str:
        return dtype_name(self._value(place).dtype)

    def _value(self, place: int) -> np.ndarray:
        name = self.proto.output[place]
        if name not in self.values:
            raise Unsupported("a result of unknown shape")
        return self.values[name]

    def axes(self, place: int, rank: int) -> list[int]:
        """Axes as an operand or an attribute; None given means none."""
        found = self.parameter(place) if place in self else self.attribute("axes")
        return [] if found is None else [int(a) % rank for a in np.atleast_1d(found)] if rank else []
