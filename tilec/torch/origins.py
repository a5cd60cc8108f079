"""Where in the model an operation is: its module, its line, the names of tensors."""

from __future__ import annotations

from torch import fx

LONGEST = 100  # characters of a line of code


def origin_text(node: fx.Node) -> str:
    """The operation, and the module and the line of the model that it comes from."""
    parts = [str(node.target) if node.op == "call_function" else node.name]
    return ", ".join(part for part in (*parts, module_path(node), source_line(node)) if part)


def operation(node: fx.Node) -> str:
    """The operator's name, without its name space and overload."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    return schema.name.removeprefix("aten::")


def called(node: fx.Node) -> str:
    """The operator that the model calls, of which PyTorch's tracing may have made several."""
    whole = getattr(node.meta.get("original_aten"), "_schema", None)
    name = operation(node) if whole is None else whole.name.removeprefix("aten::")
    return name.lstrip("_").removesuffix("_forward")


def module_path(node: fx.Node) -> str:
    """The innermost module that the operation was called in, as the model names it: `layers.0.mlp`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    _, found, inner = path.partition("']")  # of `L['self'].layers[0]`
    return (inner if found else path).lstrip(".").replace("[", "").replace("]", "")


def source_line(node: fx.Node) -> str:
    """File and line of the model's code, without folders."""
    return _source(node)[0]


def source_code(node: fx.Node) -> str:
    """The text of that line, or its beginning."""
    code = _source(node)[1]
    return code if len(code) <= LONGEST else f"{code[: LONGEST - 3]}..."


def _source(node: fx.Node) -> tuple[str, str]:
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    for number, line in reversed([*enumerate(lines)]):
        words = line.strip().split('"')
        if line.strip().startswith("File ") and len(words) > 2 and not words[1].endswith("tilec/torch/operators.py"):
            where = f"{words[1].rpartition('/')[2]}:{words[2].split(',')[1].split()[-1]}"
            return where, lines[number + 1].strip() if number + 1 < len(lines) else ""
    return "", ""


def tensor_name(node: fx.Node) -> str:
    """What the model calls a tensor, in quotes: `layers.0.weight`; of a computed one, the operation that makes it."""
    if name := node.meta.get("name"):
        return f"`{name}`" if not node.meta.get("original_aten") else f"the result of {called(node)}"
    return f"`{node.name}`" if node.op in ("placeholder", "get_attr") else f"the result of {called(node)}"
