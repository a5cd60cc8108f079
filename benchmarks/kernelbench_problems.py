"""Problems of KernelBench (https://github.com/ScalingIntelligence/KernelBench), from a checkout of it: files with `Model`,
`get_inputs` and `get_init_inputs`, as they stand or with other numbers.

A variant changes the numbers that a file gives: those that it binds to names, those of the shapes in `get_inputs`, and the
constructor's arguments that it leaves out. A name tells what a number is: a stride, a padding, a dilation, a group count, the size
of a window, a dimension, or else a size. What reads these names, such as the shape of a bias, follows by itself.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

ATTEMPTS = 60  # draws of a variant before a problem is left as it is
LEAST_BYTES = 64 << 20  # of a variant: less is the time of launches
DRAWN = {
    "stride": (1, 1, 2, 2, 3, 4),
    "padding": (0, 0, 1, 1, 2, 3),
    "dilation": (1, 1, 1, 2, 3),
    "group": (1, 2, 4, 8, 16),
    "kernel": (1, 2, 3, 3, 3, 4, 5, 5, 7, 9),
    "dim": (0, 1, 2, -1),
}
"""Values for numbers whose names contain a word."""


_count = itertools.count()


@dataclass(frozen=True)
class Problem:
    """A file of a checkout. `name`: its path below the folder without the suffix."""

    name: str
    path: Path
    seed: int | None = None

    @property
    def level(self) -> int:
        return int(re.findall(r"\d+", self.name)[0])


def problems(folder: Path, level: int | None = None, seed: int | None = None) -> list[Problem]:
    """Those of the levels 1 to 3, by number. Raises FileNotFoundError where the folder holds none."""
    files = [p for p in Path(folder).glob("level[123]/*.py") if re.match(r"\d+_", p.name)]
    files.sort(key=lambda p: (p.parent.name, int(p.name.partition("_")[0])))
    if not files:
        raise FileNotFoundError(f"{folder} has no problems: it is to hold level1, level2 and level3 of KernelBench")
    named = [Problem(f"{p.parent.name}/{p.stem}", p, seed) for p in files]
    return [p for p in named if level is None or p.level == level]


@dataclass
class Made:
    """A problem's module and inputs. `numbers`: what a variant has in place of the file's own, by name. `bytes`: of all that is
    read and of all that operations make; `least_bytes`: of inputs, parameters and results; `flops`: of products, by operation.
    `random`: whether an operation draws numbers."""

    module: torch.nn.Module
    inputs: list[Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    bytes: int = 0
    least_bytes: int = 0
    flops: dict[str, int] = field(default_factory=dict)
    random: bool = False

    def call(self, function: Callable) -> Any:
        with torch.no_grad():
            return function(*self.inputs)

    def to(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Made:
        """This, each tensor of the module and of the inputs changed, in place in the module."""
        for module in self.module.modules():
            for table in (module._parameters, module._buffers, module.__dict__):
                for name, value in list(table.items()):
                    if isinstance(value, torch.nn.Parameter):
                        table[name] = torch.nn.Parameter(change(value.detach()), value.requires_grad)
                    elif isinstance(value, torch.Tensor):
                        table[name] = change(value)
        self.inputs = tree_map(lambda x: change(x) if isinstance(x, torch.Tensor) else x, self.inputs)
        return self


def make(
    problem: Problem, device: str, dtype: torch.dtype, attempt: int | None = None, wider: torch.dtype | None = None
) -> Made:
    """The problem on a device, floats as `dtype`, or the same numbers as `wider`. `attempt`: which draw of a variant, None for the
    file as it is."""
    drawn = None if attempt is None else random.Random(f"{problem.seed} {problem.name} {attempt}")
    numbers: dict[str, Any] = {}
    scope = _loaded(problem, drawn, numbers)
    torch.manual_seed(problem.seed or 0)
    with torch.device(device):
        given = scope["get_init_inputs"]()
        left_out = _left_out(scope["Model"], given, drawn) if drawn else {}
        try:
            module = scope["Model"](*given, **left_out)
        except RuntimeError as error:  # it computes its own numbers from tensors
            if device != "meta" or "meta tensors" not in str(error):
                raise
            with torch.device("cpu"):
                module = scope["Model"](*given, **left_out)
        made = Made(module, list(scope["get_inputs"]()), numbers | left_out)
    wanted = torch.device(device)

    def change(x: torch.Tensor) -> torch.Tensor:
        return x.to(wanted, dtype).to(wider or dtype) if x.is_floating_point() else x.to(wanted)

    return made.to(change)


def variants(problem: Problem, dtype: torch.dtype) -> Iterator[tuple[int | None, Made]]:
    """The file as it is where it has no seed; else draws of it that run on meta tensors, and make no more bytes and operations than
    the file as it is, then the file as it is. Each is on meta tensors, with the number for `make`."""
    own = measured(make(problem, "meta", dtype))
    for attempt in range(ATTEMPTS if problem.seed is not None else 0):
        try:
            made = measured(make(problem, "meta", dtype, attempt))
        except Exception:  # whatever a model says of numbers that do not fit each other
            continue
        flops = sum(made.flops.values()) <= max(sum(own.flops.values()), 1 << 32)
        if flops and min(own.bytes, LEAST_BYTES) <= made.bytes <= own.bytes:
            yield attempt, made
    yield None, own


def measured(made: Made) -> Made:
    """With what a call on meta tensors makes."""
    with FlopCounterMode(display=False) as flops, _Seen() as seen:
        result = made.call(made.module)
    if any(not x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)):
        raise ValueError("the result is empty")
    read = size_of([*made.inputs, *made.module.parameters(), *made.module.buffers()])
    made.bytes, made.least_bytes, made.random = seen.bytes + read, size_of(result) + read, seen.random
    made.flops = {str(op): n for op, n in flops.get_flop_counts().get("Global", {}).items()}
    return made


def size_of(values: Any) -> int:
    """Bytes of tensors."""
    return sum(x.numel() * x.element_size() for x in tree_leaves(values) if isinstance(x, torch.Tensor))


class _Seen(TorchDispatchMode):
    """Counts bytes of what operations make; views count as what they show."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.random = 0, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.bytes += size_of(made)
        self.random |= torch.Tag.nondeterministic_seeded in function.tags
        return made


# ---- other numbers ---------------------------------------------------------------------------------------------------


def _loaded(problem: Problem, drawn: random.Random | None, numbers: dict[str, Any]) -> dict[str, Any]:
    """What the file defines; with `drawn`, after its numbers are changed."""
    tree = ast.parse(problem.path.read_text(encoding="utf-8"))
    if drawn is not None:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if (value := _number(node.value)) is not None and (new := _other(name, value, drawn)) != value:
                    node.value, numbers[name] = ast.copy_location(_literal(new), node.value), new
            elif isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
                _shapes(node, drawn, numbers)
    module = types.ModuleType(f"kernelbench_{next(_count)}_{re.sub(r'[^0-9a-zA-Z]', '_', problem.name)}")
    module.__file__ = str(problem.path)
    sys.modules[module.__name__] = module  # Dynamo looks up the globals of what it traces there
    exec(compile(ast.fix_missing_locations(tree), str(problem.path), "exec"), module.__dict__)
    return module.__dict__


def _shapes(function: ast.FunctionDef, drawn: random.Random, numbers: dict[str, Any]) -> None:
    """Changes the numbers that stand as sizes in calls such as `torch.rand(n, 224)`; equal numbers stay equal."""
    became: dict[int, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("rand", "randn"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(old := part.value, int) and old > 1:
                    part.value = became.setdefault(old, old if drawn.random() < 0.5 else _size(old, drawn))
    numbers.update({f"size {old}": new for old, new in became.items() if old != new})


def _number(node: ast.expr) -> Any:
    """What an expression without names gives, if that is whole numbers."""
    if any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "numbers", "eval"), {"__builtins__": {}})
    whole = value if isinstance(value, (tuple, list)) else (value,)
    return value if whole and all(type(v) is int for v in whole) else None


def _literal(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _other(name: str, value: Any, drawn: random.Random) -> Any:
    """Another number, or other ones, for those of a name."""
    if isinstance(value, (tuple, list)):
        if len(set(value)) == 1 and drawn.random() < 0.5:
            return type(value)([_other(name, value[0], drawn)] * len(value))
        return type(value)(_other(name, v, drawn) for v in value)
    lowered = name.lower()
    for word, values in DRAWN.items():
        if word == "dim" and not (abs(value) <= 3 and re.search(r"(^|_)(dim|axis)$", lowered)):
            continue
        if word in lowered or word == "dim" or (word == "kernel" and "pool" in lowered):
            return drawn.choice((value, *values))
    return value if value < 1 else _size(value, drawn)


def _size(value: int, drawn: random.Random) -> int:
    """A size of the same order: a multiple of a power of two, a power of two, or any number."""
    if value <= 4:
        return drawn.randint(1, 2 * value)
    wanted = max(1, round(value * 2 ** drawn.uniform(-1.5, 0.75)))
    match drawn.choice(("multiple", "multiple", "power", "any")):
        case "multiple":
            unit = min(64, 1 << max(0, (wanted // 4).bit_length() - 1))
            return max(unit, wanted // unit * unit)
        case "power":
            return 1 << (wanted.bit_length() - 1)
    return wanted


def _left_out(model: type, given: Sequence[Any], drawn: random.Random) -> dict[str, Any]:
    """Values for some of the constructor's parameters that the file leaves at their defaults."""
    found = {}
    for name, about in list(inspect.signature(model).parameters.items())[len(given) :]:
        kinds = [w for w in ("stride", "padding", "dilation", "group") if w in name]
        if name == "bias" and isinstance(about.default, bool):
            found[name] = drawn.random() < 0.5
        elif kinds and type(about.default) is int and drawn.random() < 0.5:
            found[name] = drawn.choice(DRAWN[kinds[-1]])
    return found
