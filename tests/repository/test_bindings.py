"""The stubs of MLIR's bindings, in `typings`: what they say is installed, and they have what is used, and no more."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tools import ROOT

TYPINGS = ROOT / "typings"
SOURCES = [p for folder in ("tilec", "dsl", "passes", "runtime") for p in (ROOT / folder).rglob("*.py") if p.is_file()]
MODULES = ("ir", "scf", "tensor", "func", "linalg")
"""Of the bindings, those with stubs; the types of the others stand in their generated Python."""
STUBS = sorted(p for p in (TYPINGS / "numba_cuda_mlir").rglob("*.pyi") if p.read_text(encoding="utf-8").strip())
OF_THE_GENERATED = {"register_dialect", "register_operation", "register_value_caster"}
"""What modules of the bindings take from there: those of dialects, and `ir`."""


def module_of(path: Path) -> Any:
    name = ".".join(path.relative_to(TYPINGS).with_suffix("").parts).removesuffix(".__init__")
    return importlib.import_module(name)


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AnnAssign]:
    yield from (n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AnnAssign)))


def name_of(node: ast.ClassDef | ast.FunctionDef | ast.AnnAssign) -> str:
    if isinstance(node, ast.AnnAssign):
        assert isinstance(node.target, ast.Name)
        return node.target.id
    return node.name


def shape(arguments: ast.arguments) -> list[tuple[str, str, bool]]:
    """The parameters of a function but `self`: name, kind, and whether it has a default."""
    by_place = [*arguments.posonlyargs, *arguments.args]
    optional = len(by_place) - len(arguments.defaults)
    kinds = ["place"] * len(arguments.posonlyargs) + ["any"] * len(arguments.args)
    found = [(a.arg, kind, n >= optional) for n, (a, kind) in enumerate(zip(by_place, kinds))]
    found += [(arguments.vararg.arg, "rest", False)] if arguments.vararg else []
    found += [(a.arg, "keyword", d is not None) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return [f for f in found if f[0] not in ("self", "cls")]


def installed_shapes(function: Any) -> list[list[tuple[str, str, bool]]] | None:
    """Of each overload; None where the bindings do not tell."""
    function = getattr(function, "__func__", function)
    if reported := getattr(function, "__nb_signature__", None):
        texts = [re.sub(r"\\\d+|= \.\.\.", lambda m: "= ..." if "=" in m[0] else "None", t[0]) for t in reported]
        return [shape(ast.parse(f"{t}: ...").body[0].args) for t in texts]
    if not inspect.isfunction(function):
        return None
    kinds = {"POSITIONAL_ONLY": "place", "POSITIONAL_OR_KEYWORD": "any", "VAR_POSITIONAL": "rest", "KEYWORD_ONLY": "keyword"}
    given = inspect.signature(function).parameters.values()
    return [
        [(p.name, kinds[p.kind.name], p.default is not p.empty) for p in given if p.name != "self" and p.kind.name in kinds]
    ]


def agrees(node: ast.FunctionDef, installed: Any) -> bool:
    """The names that may be given by keyword, the order, and which may be left out. A stub may join overloads that differ in
    types alone, and may leave out `*args` and `**kwargs`."""
    shapes = installed_shapes(installed)
    own = shape(node.args)
    return shapes is None or own in [[p for p in s if p[1] != "rest" or p in own] for s in shapes]


@pytest.mark.parametrize("path", STUBS, ids=lambda p: str(p.relative_to(TYPINGS)))
def test_what_the_stubs_say_is_installed(path):
    module, tree = module_of(path), ast.parse(path.read_text(encoding="utf-8"))
    checked = 0
    for node in definitions(tree):
        installed = getattr(module, name_of(node))
        if isinstance(node, ast.FunctionDef):
            assert agrees(node, installed), f"{name_of(node)}: {installed_shapes(installed)}"
            checked += 1
        if not isinstance(node, ast.ClassDef):
            continue
        for member in definitions(node):
            name = name_of(member)
            if name == "__iter__" and not hasattr(installed, name):
                assert hasattr(installed, "__getitem__"), "iterated by its subscripts"
                continue
            owner = next((vars(c)[name] for c in installed.__mro__ if name in vars(c)), None)
            assert owner is not None or hasattr(installed, name), f"{node.name}.{name}"
            if not isinstance(member, ast.FunctionDef):
                continue
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in member.decorator_list)
            assert is_property == (inspect.isdatadescriptor(owner) and not callable(owner)), f"{node.name}.{name}"
            assert is_property or agrees(member, getattr(installed, name)), (
                f"{node.name}.{name}: {installed_shapes(getattr(installed, name))}"
            )
            checked += 1
    for node in tree.body:  # what a stub takes from another module of the bindings
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("numba_cuda_mlir"):
            assert all(hasattr(importlib.import_module(node.module), a.name) for a in node.names)
    assert checked or path.name == "__init__.pyi"


@cache
def used() -> tuple[dict[str, set[str]], set[str]]:
    """What the product takes of each module of the bindings, and all attributes that it reads anywhere."""
    modules: dict[str, set[str]] = {}
    attributes: set[str] = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        attributes.update(re.findall(r"\.([A-Za-z_]\w*)", text))
        if "tilec.core.mlir import" in text:
            for module, name in re.findall(rf"(?<![\w.\"`])({'|'.join(MODULES)})\.([A-Z]\w*|\w+(?=\())", text):
                modules.setdefault(module, set()).add(name)
    return modules, attributes


@pytest.mark.parametrize("name", MODULES)
def test_nothing_that_is_used_is_missing(name):
    path = next(p for p in STUBS if (p.parent.name if p.stem == "__init__" else p.stem) == name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {name_of(n) for n in definitions(tree)}
    names |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    names |= {a.asname for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names if a.asname}
    missing = used()[0][name] - names - OF_THE_GENERATED - {name}
    assert used()[0][name] and not missing, missing


@pytest.mark.parametrize("path", STUBS, ids=lambda p: str(p.relative_to(TYPINGS)))
def test_nothing_is_stubbed_that_is_not_used(path):
    text = path.read_text(encoding="utf-8")
    attributes = used()[1] | {"Any"}
    for node in definitions(ast.parse(text)):
        name = name_of(node)
        assert name in attributes | OF_THE_GENERATED or text.count(name) > 1, name
        for member in definitions(node) if isinstance(node, ast.ClassDef) else ():
            assert name_of(member).startswith("__") or name_of(member) in attributes, f"{name}.{name_of(member)}"


def test_what_the_stub_of_llvmlite_says_is_installed():
    """Its functions, and methods of its classes. Attributes are set by constructors, and it is a part: the rest is untyped."""
    path, checked = TYPINGS / "llvmlite" / "ir.pyi", 0
    module = module_of(path)
    for node in definitions(ast.parse(path.read_text(encoding="utf-8"))):
        for member in definitions(node) if isinstance(node, ast.ClassDef) else [node]:
            owner = getattr(module, node.name) if isinstance(node, ast.ClassDef) else module
            if isinstance(member, ast.FunctionDef) and member.name != "__getattr__":
                assert callable(getattr(owner, member.name)), f"{node.name}.{member.name}"
                checked += 1
    assert checked > 20
