"""Numbers that were fitted to measurements: each is read, each target has them or says whose it inherits, mistakes are named."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomlkit

import tilec
import tilec.passes
import tilec.runtime
from benchmarks import kernels, sensitivity
from tilec.core import host as host_module
from tilec.core import target, targets
from tilec.core.diagnostics import CallError
from tilec.core.fitted import DEFAULTS, GROUPS, Barriers, PanelTimes, RowTimes
from tilec.cost.rows import Rows, RowTile, row_cost
from tilec.driver import calibrate

FILES = sorted(target.BUILT_IN.glob("*.toml"))
PACKAGES = [Path(m.__file__).parent for m in (tilec, tilec.passes, tilec.runtime)]
SOURCES = [p for package in PACKAGES for p in package.rglob("*.py") if p.name != "fitted.py"]
ROWS = Rows(64, 65536, 2, passes=3)


@pytest.fixture
def write(tmp_path):
    """Writes a built-in file with some changes; returns the path."""

    def write(change, name="h200"):
        table = tomlkit.parse((target.BUILT_IN / f"{name}.toml").read_text())
        change(table)
        (tmp_path / "mine.toml").write_text(tomlkit.dumps(table))
        return tmp_path / "mine.toml"

    return write


def _group_of(value: ast.AST) -> str | None:
    """The group that `target.fit(Group)` gives."""
    call = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "fit"
    return value.args[0].id if call and isinstance(value.args[0], ast.Name) else None


def _reads(function: ast.FunctionDef) -> set[tuple[str, str]]:
    """The (group, number) that a function reads: `fit = target.fit(Group)` or an argument `fit: Group`, then `fit.number`."""
    names = {a.arg: a.annotation.id for a in function.args.args if isinstance(a.annotation, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            left = node.targets[0]
            both = isinstance(left, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(left.elts, node.value.elts) if both else [(left, node.value)]
            names |= {n.id: g for n, v in pairs if isinstance(n, ast.Name) and (g := _group_of(v))}
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            group = names.get(node.value.id) if isinstance(node.value, ast.Name) else _group_of(node.value)
            found.add((group or "", node.attr))
    return found


def test_every_number_is_read():
    functions = [n for p in SOURCES for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.FunctionDef)]
    read = set().union(*map(_reads, functions))
    numbers = {(g.__name__, f.name) for g in GROUPS.values() for f in dataclasses.fields(g) if f.metadata}
    assert len(numbers) > 60 and numbers <= read, numbers - read


def test_every_number_decides_or_says_why_it_stands():
    """By the newest results of `python -m benchmarks sensitivity`. A number that is newer shows in docs/targets.md."""
    fields, found = sensitivity.numbers("cuda") | sensitivity.numbers("cpu"), sensitivity.evidence()
    assert found.keys() == fields.keys() and len(found) > 100
    for name, (kind, text) in found.items():
        stands = fields[name].metadata["stands"]
        assert text and kind in ("moved", "without", "measured", "reported", "new"), (name, kind)
        assert not stands or (kind, text) == (stands.partition(":")[0], stands), f"{name} changes a plan: {text}"
        assert not stands or fields[name].metadata["without"] is None, name
    assert sum(kind == "new" for kind, _ in found.values()) < 20, "run `python -m benchmarks sensitivity`"


def test_a_number_moves_by_30_percent_and_at_least_one():
    h200 = targets.load("h200")
    for name, way, value in (
        ("rows.ending", "lower", 0.105), ("layouts.point_threads", "higher", 256), ("layouts.loads", "lower", 2),
        ("row_registers.smem_accesses", "higher", 5), ("persistent_rows.last_round", "without", 1),
    ):  # fmt: skip
        group, _, key = name.partition(".")
        found = sensitivity.moved(h200, name, way)
        assert getattr(found.fitted.groups[group], key) == pytest.approx(value)
        assert found.fitted.groups.keys() == h200.fitted.groups.keys() and found != h200


def test_a_number_that_decides_is_reported_with_its_program(monkeypatch):
    """Moved alone, and found among others that change nothing."""
    monkeypatch.setattr(sensitivity, "machine", lambda name: target.built_in(name))
    nothing = {"make_key": lambda *parts: "", "compiler_digest": lambda: "", "load": lambda key: None, "save": lambda *entry: True}
    monkeypatch.setattr(sensitivity, "disk", SimpleNamespace(**nothing))
    name, others = "loops.block_elements", ["nests.scalar_issue", "nests.entry_clocks"]
    cos = next(p for p in kernels.programs(["cpu"]) if p.name == "cos 4096x4096 f32")
    monkeypatch.setattr(sensitivity, "problems", lambda kind: ([sensitivity.Problem(cos, "cpu")], 1))
    for alone, together in (([name, *others], []), ([], [name, *others])):
        _, found = sensitivity.found_for("cpu", 0, alone, together)
        decides = {n: [other for other, _ in ways.values()] for n, ways in found["moved"].items()}
        assert any(decides[name]) and not any(decides[n][0] or decides[n][1] for n in others)


def test_no_constant_of_the_compiler_is_a_measurement():
    """Such a number belongs to a target file: constants are choices, limits, and facts of instruction sets."""
    lines = [  # each with its docstring
        (p.name, found[0].replace("\n", " "))
        for p in SOURCES
        for found in re.finditer(r'^_?[A-Z][A-Z_0-9]* = .*(\n"""(.|\n)*?""")?', p.read_text(), re.M)
    ]
    assert len(lines) > 100
    assert not [
        (name, line) for name, line in lines if re.search(r"\w_NS = |measured[),]|measured on an? |H[12]00", line)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_target_file_has_the_groups_or_names_whose_it_inherits(path):
    table = tomllib.loads(path.read_text())
    groups = {n for n, g in GROUPS.items() if g.kind == table["kind"]}
    own = {n for n, v in table["fitted"].items() if isinstance(v, dict)}
    assert own == groups or "inherits" in table["fitted"]
    assert not own or table["fitted"]["machine"]
    assert set(target.read(path).fitted.groups) == groups


@pytest.mark.parametrize("kind", DEFAULTS)
def test_the_targets_that_others_inherit_from_have_all_numbers(kind):
    t = target.built_in(DEFAULTS[kind])
    assert t.kind == kind and not t.fitted.sources and not t.fitted.inherits and not str(t.fitted)
    assert all(len(g.fitted_to) > 20 for g in t.fitted.groups.values())


def test_a_file_without_the_table_inherits(write):
    plain, h200 = targets.load(write(lambda x: x.pop("fitted"))), targets.load("h200")
    assert plain.fitted.groups == h200.fitted.groups and plain.fitted.inherits == "h200"
    assert str(plain.fitted) == "the cost model's numbers were fitted on NVIDIA H200 SXM, 141 GB"
    tile = RowTile(512, 8, 1, 4, 4, "registers", 64)
    assert row_cost(plain, ROWS, tile) == row_cost(h200, ROWS, tile)


def test_a_file_may_have_groups_of_its_own(write):
    def change(table):
        barriers = table["fitted"]["barriers"] | {"cluster_ns": 9000, "fitted_to": "a guess"}
        table["fitted"] = {"machine": "mine", "inherits": "a100", "barriers": barriers}

    t, h200 = targets.load(write(change)), targets.load("h200")
    assert t.fit(Barriers).cluster_ns == 9000 and t.fit(RowTimes) == h200.fit(RowTimes)
    assert t.fitted.sources == dict.fromkeys(set(t.fitted.groups) - {"barriers"}, "NVIDIA H200 SXM, 141 GB")
    reported = "the cost model's numbers were fitted on NVIDIA H200 SXM, 141 GB, but for those of barriers"
    assert str(t.fitted) == reported
    tile = RowTile(512, 8, 1, 4, 4, "registers", 64)
    assert row_cost(t, ROWS, tile).time_us > row_cost(h200, ROWS, tile).time_us
    assert t.digest() != h200.digest() and target.from_dict(t.to_dict()) == t


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x["rows"].update(endings=1), r"unknown key `fitted.rows.endings`\nhint: did you mean `ending`"),
        (lambda x: x.update(row={}), r"unknown key `fitted.row` of a cuda target\nhint: did you mean `rows`"),
        (lambda x: x.update(panels={}), r"unknown key `fitted.panels` of a cuda target"),
        (lambda x: x["rows"].pop("ending"), "`fitted.rows.ending` is missing"),
        (lambda x: x["rows"].pop("fitted_to"), "`fitted.rows.fitted_to` is missing"),
        (lambda x: x["rows"].update(fitted_to=""), "`fitted.rows.fitted_to` is empty"),
        (lambda x: x["rows"].update(ending="much"), "`fitted.rows.ending` must be a number, not 'much'"),
        (lambda x: x["rows"].update(ending=-1), "`fitted.rows.ending` is -1.0"),
        (lambda x: x["rows"].update(scatter_bytes=0), "`fitted.rows.scatter_bytes` is 0.0, and must be 1 or above"),
        (lambda x: x["layouts"].update(point_threads=96), "`fitted.layouts.point_threads` is 96, and must be a power of two"),
        (lambda x: x.update(rows=3), "`fitted.rows` must be a table"),
        (lambda x: x.pop("machine"), "`fitted.machine` is missing"),
        (lambda x: (x.pop("rows"), x.update(inherits="h20")), "`fitted.inherits` is 'h20', which is no cuda target"),
        (lambda x: (x.pop("rows"), x.update(inherits="cpu")), "`fitted.inherits` is 'cpu', which is no cuda target"),
    ],
)  # fmt: skip
def test_mistakes_in_the_table_are_named(write, change, message):
    with pytest.raises(CallError, match=message):
        targets.load(write(lambda table: change(table["fitted"])))


def test_the_table_is_a_table(write):
    with pytest.raises(CallError, match="`fitted` must be a table"):
        targets.load(write(lambda table: table.update(fitted=1)))


def test_a_target_has_numbers_of_its_kind():
    with pytest.raises(CallError, match=r"no numbers \[fitted.panels\]: they are of cpu targets"):
        targets.load("h200").fit(PanelTimes)


def test_a_host_inherits_and_its_file_says_so(tmp_path):
    host = host_module.estimate()
    assert set(host.fitted.sources) == set(host.fitted.groups) and "Intel Xeon" in str(host.fitted)
    calibrate._write(host, tmp_path / "cpu.toml")
    assert tomllib.loads((tmp_path / "cpu.toml").read_text())["fitted"] == {"inherits": "cpu"}
    assert target.read(tmp_path / "cpu.toml").fitted == host.fitted


def test_a_gpu_without_a_file_inherits(monkeypatch):
    reported = {
        "units": 66, "major": 12, "minor": 0, "l2_bytes": 60 << 20, "shared_bytes": 102400, "blocks": 24, "registers": 65536,
        "shared_per_block": 101376, "threads": 1536, "threads_per_block": 1024, "memory_khz": 0, "bus_bits": 0,
    }  # fmt: skip
    monkeypatch.setattr(targets, "_query_driver", lambda: ("GeForce RTX 5555", reported))
    t = targets.load("cuda")
    assert t.fitted.inherits == "rtx4090" and set(t.fitted.sources.values()) == {"NVIDIA H200 SXM, 141 GB"}


@pytest.mark.parametrize(("name", "reported"), [("a100", 1), ("h200", 0)])
def test_explain_says_whose_numbers_it_uses(name, reported):
    op = tilec.compile("op f(x: f32[64]) -> (y: f32[64]) { y[i] = 2 * x[i] }", target=name)
    text = op.explain(full=True)
    assert text.count("the cost model's numbers were fitted on NVIDIA H200 SXM") == reported
