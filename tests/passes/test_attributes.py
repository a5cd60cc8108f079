"""The table of `tilec.*` attributes: no file names another, passes are held to it, and so is text that a person edited."""

import re
from pathlib import Path

import pytest
from tools.commands import SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

import tilec
from tilec.core import mlir, records
from tilec.core.diagnostics import InternalError, Source
from tilec.core.mlir import ir
from tilec.core.opcodes import OPCODES, NamedBarrier, WarpgroupProduct, opcode_of
from tilec.core.records import Malformed
from tilec.core.targets import load
from tilec.driver import lowering
from tilec.driver.frontend import parsed
from tilec.driver.lowering import lower
from tilec.driver.recipe import Recipe
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.kernels.attributes import STAGES, TABLE, Placement, Spread
from tilec.kernels.verifier import Verifier
from tilec.passes import Stage

ROOT = Path(tilec.__file__).parent.parent
SOURCES = [path for folder in ("tilec", "dsl", "passes", "runtime") for path in sorted((ROOT / folder).rglob("*.py"))]
PACKAGES = {"tilec.dsl", "tilec.passes", "tilec.runtime"}


def names_in(path: Path) -> set[str]:
    """Attributes that strings of a file name in full."""
    return set(re.findall(r"""["'](tilec\.[a-z_]*[a-z])["']""", path.read_text())) - PACKAGES


def test_no_file_names_an_attribute_that_is_not_declared():
    named = {name: path.name for path in SOURCES for name in names_in(path)}
    declared = {f"tilec.{row.name}" for row in TABLE}
    assert len(named) > 25
    assert not {name: path for name, path in named.items() if name not in declared}


def test_rows_are_in_order_of_stages():
    for row in TABLE:
        assert STAGES.index(row.first) <= STAGES.index(row.last), row.name
        assert row.meaning and row.type.text and row.on
    pairs = [(row.name, place) for row in TABLE for place in row.on]
    assert len(pairs) == len(set(pairs))


# ---- what is found -------------------------------------------------------------------------------------------------------

GENERIC = """
#m = affine_map<(i, j) -> (i, j)>
module {{
  func.func @f(%x: tensor<2x3xf32> {{{argument}}}) -> tensor<2x3xf32> {{
    %e = tensor.empty() : tensor<2x3xf32>
    %y = linalg.generic {{indexing_maps = [#m, #m], iterator_types = ["parallel", "parallel"]}} ins(%x : tensor<2x3xf32>)
        outs(%e : tensor<2x3xf32>) attrs = {{{attributes}}} {{
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }} -> tensor<2x3xf32>
    return %y : tensor<2x3xf32>
  }}
}}
"""


def fault(
    attributes: str = 'tilec.name = "y"', argument: str = "", stage: str = "plan", ended: bool = True
) -> str | None:
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(GENERIC.format(attributes=attributes, argument=argument))
        found = Verifier().fault(module.operation, stage, ended)
        return None if found is None else str(found)


@pytest.mark.parametrize(
    "attributes, message",
    [
        ("tilec.nonsense", "`tilec.nonsense` on linalg.generic is not declared"),
        ("tilec.blocks = 1 : i64", "`tilec.blocks` on linalg.generic belongs on kernel"),
        ("tilec.stages = 1 : i64", "is written by stage 'stage', and not before"),
        ("tilec.stored = -1 : i64", "should be a whole number of at least 0"),
        ("tilec.inline = 1 : i64", "should be a mark without a value; it is 1 : i64"),
        ("tilec.loop_group = -1 : i64", "should be a whole number of at least 0"),
        ("tilec.loop_group = 1 : i32", "should be a whole number of at least 0; it is 1 : i32"),
        ("tilec.dims = array<i64: 0>", "should be 2 different whole numbers, one for each dimension"),
        ("tilec.dims = array<i64: 4, 4>", "should be 2 different whole numbers"),
        ("tilec.loops = array<i64: 0, 2>", "should be 0 to 1 in some order"),
        ("tilec.scan = 2 : i64", "should be one of the operation's dimensions"),
        ('tilec.indices = ["i"]', "should be a word for each dimension"),
        ('tilec.indices = ["i", 1]', "should be a word for each dimension"),
        ('tilec.indices = "i"', "should be a word for each dimension"),
        ("tilec.cut = array<i64>", "belongs on kernel"),
        ("tilec.statements = {}", "belongs on module"),
    ],
)  # fmt: skip
def test_what_is_wrong(attributes, message):
    assert message in fault(attributes)


def test_what_is_right():
    assert fault() is None
    placed = (
        'tilec.kernel = "k", tilec.loop_group = 0 : i64, tilec.dims = array<i64: 3, 1>, tilec.loops = array<i64: 1, 0>'
    )
    assert fault(placed) is None
    assert fault('tilec.indices = ["i", "j"]') is None
    assert fault(f"tilec.stored = 0 : i64, {placed}") is None
    assert "outlives stage 'fuse'" in (fault(f"tilec.stored = 0 : i64, {placed}", stage="fuse") or "")


def test_dimensions_are_of_operations_that_have_some():
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse("func.func @f() attributes {tilec.dims = array<i64: 0>} { return }")
        assert '`tilec.dims` on func.func "f" belongs on linalg.generic' in str(
            Verifier().fault(module.operation, "plan", True)
        )


def test_texts_of_statements_and_names_of_kernels():
    with mlir.context(), ir.Location.unknown():
        kernel = 'func.func @k() attributes {tilec.kernel, tilec.indices = ["i", "", "j"], tilec.cut = array<i64: 0, 2>} { return }'
        text = 'module attributes {tilec.statements = {"a.tile:1:1" = %s}} {%s}'
        assert Verifier().fault(mlir.parse(text % ('"y[i] = x[i]"', kernel)).operation, "tile", True) is None
        found = Verifier().fault(mlir.parse(text % ("1", kernel)).operation, "tile", True)
        assert "`tilec.statements` on builtin.module should be a dictionary of words" in str(found)
        found = Verifier().fault(mlir.parse(text % ('""', kernel.replace('""', "0"))).operation, "tile", True)
        assert '`tilec.indices` on func.func "k" should be words' in str(found)


def test_arguments_are_looked_at():
    assert fault(argument='tilec.name = "x"') is None
    assert "`tilec.other` on an argument of func.func" in fault(argument="tilec.other")
    assert "should be a word" in fault(argument="tilec.name")


def test_the_marks_of_kernels_and_operations_are_two():
    """`tilec.kernel` is a word on an operation that has not been moved into its kernel, a mark on the kernel."""
    assert "should be a word" in fault("tilec.kernel")
    assert "outlives stage 'fuse'" in fault('tilec.kernel = "k"', stage="fuse")


def test_known_attributes_are_checked_again_at_other_stages_and_ranks():
    with mlir.context(), ir.Location.unknown():
        verifier = Verifier()
        text = GENERIC.format(attributes="tilec.inline, tilec.dims = array<i64: 0, 1>", argument="")
        module = mlir.parse(text).operation
        assert verifier.fault(module, "plan", ended=True) is None
        assert "outlives" in str(verifier.fault(module, "fuse", ended=True))
        text = text.replace("2x3xf32", "2x3x4xf32").replace("(i, j)", "(i, j, k)")
        other = mlir.parse(text.replace('"parallel", "parallel"', '"parallel", "parallel", "parallel"')).operation
        assert "3 different whole numbers" in str(verifier.fault(other, "plan", ended=True))


# ---- passes and people ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["linalg.generic", "func.func"])
def test_a_pass_that_leaves_an_attribute_is_named(monkeypatch, of):
    """With the operation and the attribute, whatever passes of upstream come behind it."""
    stages = lowering.stages

    def careless(module: ir.Operation) -> None:
        next(op for op in mlir.traverse(module) if op.name == of).attributes["tilec.careless"] = ir.UnitAttr.get()

    def changed(plan, target) -> tuple[Stage, ...]:
        return tuple(
            Stage(s.name, s.summary, (careless, *s.steps) if s.name == "tile" else s.steps)
            for s in stages(plan, target)
        )

    monkeypatch.setattr(lowering, "stages", changed)
    program = "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j] * 2) }"
    specialised = specialise(parse(Source("f.tile", program)), "f", None, {"M": 40, "N": 50})
    for texts, blamed in ((True, "careless"), (False, "tile")):  # without texts, the last pass of the stage
        with mlir.context(), ir.Location.unknown(), pytest.raises(InternalError) as error:
            lower(build(specialised), load("h200"), texts=texts)
        assert re.search(
            rf"after pass '{blamed}' of stage 'tile', `tilec.careless` on {of} .* is not declared", str(error.value)
        )
        assert error.value.stage == "tile"
    with pytest.raises(InternalError, match="after pass 'careless'"):
        Recipe(parsed(Source("<f>", program)), "f", None, {"M": 40, "N": 50}, load("h200")).compiled_here()


@pytest.mark.parametrize(
    "stage, pattern, edited, message",
    [
        ("02-plan", r"tilec\.loop_group = 0", "tilec.loop_grup = 0", "`tilec.loop_grup` on linalg.generic"),
        ("02-plan", r"tilec\.dims = array<i64: 0, 1>", "tilec.dims = array<i64: 0>", "one for each dimension"),
        ("02-plan", r"tile = array<i64: \d+>", "tile = array<i64>", "a `grid` and a `tile` with as many numbers"),
        ("02-plan", r"loop_nest = \{\}", "loop_nest = {fast = true}", "a dictionary without `fast`"),
        ("04-tile", r"tilec\.name = \"m\"", 'tilec.name = "m", tilec.inline', "outlives stage 'fuse'"),
    ],
)
def test_opt_refuses_wrong_edits(tilec, folder, stage, pattern, edited, message):
    tilec("dump", *SOFTMAX, "-o", "ir")
    path = folder / "ir" / f"{stage}.mlir"
    text, count = re.subn(pattern, edited, path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    status, out, err = tilec("opt", path)
    assert (status, out) == (1, "") and message in err and "defect" not in err and "docs/architecture.md" in err


def test_verify_refuses_wrong_edits(tilec, folder):
    tilec("dump", *SOFTMAX, "-o", "ir")
    path = folder / "ir" / "04-tile.mlir"
    path.write_text(path.read_text().replace("tilec.dims", "tilec.dimensions", 1))
    status, _, err = tilec("verify", *SOFTMAX, "--ir", path)
    assert status == 1 and "`tilec.dimensions` on linalg.generic" in err and "is not declared" in err


# ---- records -------------------------------------------------------------------------------------------------------------


def test_records_are_written_and_read_by_fields():
    product = WarpgroupProduct(64, 128, "bf16", right_k_major=False, left_in_registers=True, right_slab=16)
    placed = Placement(kernel="k", loop_group=1, dims=(2, 0))
    with mlir.context(), ir.Location.unknown():
        for record in (product, placed, Spread(1, 4, 8), NamedBarrier(True)):
            assert records.from_attribute(type(record), records.to_attribute(record)) == record
        assert "left_slab" not in records.to_attribute(product)
        module = mlir.parse(GENERIC.format(attributes="", argument=""))
        op = next(o for o in mlir.traverse(module.operation) if mlir.is_generic(o))
        placed.write(op)
        assert Placement.of(op) == placed


@pytest.mark.parametrize(
    "text, message",
    [
        ("{dim = 0 : i64, blocks = 2 : i64}", "a dictionary with `part`"),
        ('{dim = "x"}', "a dictionary in which `dim` is a whole number, not \"x\""),
        ("{other = 1 : i64}", "a dictionary without `other`"),
        ("3 : i64", "a dictionary, not 3 : i64"),
    ],
)
def test_dictionaries_that_are_no_records(text, message):
    with mlir.context(), pytest.raises(Malformed, match=re.escape(message)):
        records.from_attribute(Spread, ir.Attribute.parse(text))


NAMELESS = ["[{}]", '[{rewrite = "split"}]', '[{rewrite = "split", operation = 1 : i64}]', "[1 : i64]", "{}", "1 : i64"]


@pytest.mark.parametrize("text", NAMELESS)
def test_steps_of_rewrites_have_names(text):
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(f"module attributes {{tilec.rewrites = {text}}} {{}}")
        assert "a list of dictionaries with `rewrite` and `operation`" in str(Verifier().fault(module.operation, "plan", True))


def test_opcodes_are_found_by_their_attribute():
    text = """
    func.func private @wgmma_wait_7(f32)
    func.func @f(%x: f32) {
      func.call @wgmma_wait_7(%x) {tilec.wgmma_wait = {running = 2 : i64}} : (f32) -> ()
      func.call @wgmma_wait_7(%x) : (f32) -> ()
      return
    }"""
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(text)  # operations do not keep their module
        first, second = [o for o in mlir.traverse(module.operation) if o.name == "func.call"]
        assert opcode_of(first) == OPCODES["wgmma_wait"](2) and opcode_of(second) is None
