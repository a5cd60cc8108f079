"""Schedule files: what `plan` writes is read back as the same plan; edits are obeyed, predicted, or refused
with reasons.
"""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tools import ROOT, lowering
from tools.printed import code

import tilec
from tilec.cli.command import main
from tilec.core.diagnostics import CallError
from tilec.plan.given_groups import Fixed
from tilec.plan.schedule.write import merge_schedule, read_schedule, write_schedule

EXAMPLES = ROOT / "examples"
SIZES = {
    "softmax": {"M": 512, "N": 512},
    "mlp": {"M": 64, "D": 32, "F": 48},
    "attention": {"B": 2, "H": 2, "S": 32, "T": 48, "D": 16},
    "variance": {"M": 300, "N": 200},
}


def lowered(name: str, schedule=None, target: str = "cpu", sizes=None):
    op = "attention" if name == "attention" else None
    return lowering.lowered(EXAMPLES / f"{name}.tile", op, sizes or SIZES[name], schedule, target)


def planned(specialised, path: Path | None = None):
    """The plan for an H200, the compiler's own or by a schedule file."""
    schedule = read_schedule(path) if path else None
    return lowering.lowered(specialised, schedule=schedule, end="plan", emit=False)[1].plan


def written(name: str, **options) -> str:
    specialised, result = lowered(name, **options)
    return write_schedule(result.plan, specialised)


@pytest.fixture
def obeyed(tmp_path):
    """Lowers a program with the text of a schedule file."""

    def run(name: str, text: str, **options):
        path = tmp_path / f"{name}.sched.toml"
        path.write_text(text)
        return lowered(name, read_schedule(path), **options)[1]

    return run


def edited(text: str, *changes: tuple[str, str]) -> str:
    for pattern, new in changes:
        assert re.search(pattern, text, re.MULTILINE), pattern
        text = re.sub(pattern, new, text, count=1, flags=re.MULTILINE)
    return text


@pytest.mark.parametrize("name", SIZES)
def test_what_is_written_is_read_back(name, obeyed):
    specialised, own = lowered(name)
    again = obeyed(name, write_schedule(own.plan, specialised))
    assert again.plan == own.plan
    assert again.emitted == own.emitted


def test_the_file_is_for_people():
    text = written("softmax")
    assert 'program = "softmax(x: f32[512, 512])" # M = 512, N = 512' in text
    assert re.search(r"^\[plan.kernels.softmax_y\] # [\d.]+ us, bound by \w+$", text, re.MULTILINE)
    assert re.search(
        r"^# softmax.tile:4: fused m with e: [\d.]+ us as one kernel, [\d.]+ us as 2 kernels$", text, re.MULTILINE
    )
    assert re.search(r"^tile = \[\d+\] # of i = 512: \d+ blocks$", text, re.MULTILINE)


def test_a_tile_is_obeyed(obeyed):
    result = obeyed("softmax", edited(written("softmax"), (TILE, "tile = [2]")))
    (kernel,) = result.plan.kernels
    assert kernel.tile == (2,) and kernel.blocks == kernel.work.blocks == 256
    assert result.emitted.kernels[0].grid == 256
    (remark,) = [r for r in result.plan.remarks if r.verb == "obeyed"]
    assert "gives tile [2] instead of [" in remark.reason and "the compiler's choice" in remark.reason
    assert dict(remark.alternatives)["the schedule's"] == kernel.prediction.time_us


def test_registers_are_counted(obeyed):
    """What a schedule allows a thread is what the prediction counts: 1024 threads fit with 64 registers, not with 72."""
    sizes = {"M": 512, "N": 16384}
    text = edited(
        written("softmax", target="h200", sizes=sizes),
        (r"^thread_counts = .*", "thread_counts = [1, 1024]"),
        (r"^registers = \d+", "registers = 64"),
    )
    (kernel,) = obeyed("softmax", text, target="h200", sizes=sizes).plan.kernels
    assert kernel.prediction.occupancy.blocks == 1
    with pytest.raises(CallError, match="`registers` must be from 16 to 64 for a block of 1024 threads"):
        obeyed("softmax", edited(text, ("^registers = 64", "registers = 72")), target="h200", sizes=sizes)


@pytest.mark.parametrize(
    "pattern, new, message, hint",
    [
        (r"^registers = ", "registres = ", "has no option `registres`", "did you mean `registers`?"),
        (r"^registers = ", "register_chunks = ", "has no option `register_chunks`", "it was renamed to `hybrid_chunks`"),
        (r"^registers = \d+", "registers = 1.5", "`registers` must be a whole number", None),
        (r"^registers = \d+", "registers = 8", "`registers` must be from 16 to", None),
    ],
)
def test_an_option_of_another_name_has_a_hint(obeyed, pattern, new, message, hint):
    with pytest.raises(CallError) as error:
        obeyed("softmax", edited(written("softmax", target="h200"), (pattern, new)), target="h200")
    (diagnostic,) = error.value.diagnostics
    assert message in diagnostic.message and diagnostic.hint == hint


def test_a_file_next_to_the_program_is_obeyed(tmp_path):
    """From Python as from the shell; a plan for other sizes says nothing of these."""
    program = tmp_path / "softmax.tile"
    program.write_text((EXAMPLES / "softmax.tile").read_text())
    text = edited(written("softmax"), (TILE, "tile = [2]"))
    (tmp_path / "softmax.sched.toml").write_text(text)
    assert tilec.compile(program, target="cpu").build(M=512, N=512).kernels[0].grid == 256
    assert tilec.compile(program, target="cpu").build(M=300, N=512).kernels[0].grid != 150


def test_loops_are_obeyed(obeyed):
    result = obeyed(
        "variance",
        edited(written("variance"), (r"^mu = \[\d, \d\]|^\"mu.sum\" = \[\d, \d\]", '"mu.sum" = [0, 1]')),
    )
    assert any(k.loops.get("mu.sum") == (0, 1) for k in result.plan.kernels)


def test_groups_are_obeyed(obeyed):
    """An operation moved to a new table is a kernel of that name; what it reads goes through memory."""
    text = edited(
        written("softmax"),
        (r"operations = .*$", 'operations = ["m", "e", "s"]'),
        (r"^tile = .*$", ""),
        (r"^y = .*\n", ""),
    )
    result = obeyed("softmax", text + '\n[plan.kernels.softmax_divide]\noperations = ["y"]\n')
    assert [(k.name, k.nodes) for k in result.plan.kernels] == [
        ("softmax_y", ("m", "e", "s")),
        ("softmax_divide", ("y",)),
    ]
    assert [k.name for k in result.emitted.kernels] == ["softmax_y", "softmax_divide"]
    (remark,) = [r for r in result.plan.remarks if r.subject == "kernels"]
    assert "gives the kernels m, e, s | y:" in remark.reason and "the compiler's choice m, e, s, y" in remark.reason


def test_inlining_is_obeyed(obeyed):
    text = edited(
        written("softmax"),
        (r"^inline = .*$", 'inline = ["e"]'),
        (r"^operations = .*$", 'operations = ["m", "s", "y"]'),
        (r"^e = .*\n", ""),
    )
    result = obeyed("softmax", text)
    assert result.plan.inlined == ("e",)
    assert len(re.findall(r"\bexp(_below)?\(", code(result.emitted.module))) == 2


def test_other_shapes_and_targets_are_not_meant(obeyed):
    text = edited(written("softmax"), (TILE, "tile = [2]"))
    result = obeyed("softmax", text, sizes={"M": 64, "N": 512})
    assert "the compiler decided" in result.plan.remarks[-1].reason
    assert [replace(k) for k in result.plan.kernels] == list(
        lowered("softmax", sizes={"M": 64, "N": 512})[1].plan.kernels
    )


def test_plans_are_merged():
    specialised, small = lowered("softmax", sizes={"M": 8, "N": 8})
    text = written("softmax")
    both, replaced = merge_schedule(text, small.plan, specialised)
    assert not replaced and both.count("[[plan]]") == 2
    assert merge_schedule(both, small.plan, specialised) == (both, False)
    changed = both.replace("tile = [8] # of i = 8", "tile = [4] # of i = 8")
    assert changed != both
    again, replaced = merge_schedule(changed, small.plan, specialised)
    assert replaced and again.count("[[plan]]") == 2


TILE = r"^tile = \[\d+\]"
MISTAKES = {
    "unknown operation": ([(r'"m", "e"', '"m", "ee"')], "there is no operation `ee`", "did you mean `e`?"),
    "operation left out": ([(r'"m", "e", ', '"m", ')], "the operation `e` is in no kernel", "under a kernel"),
    "operation twice": ([(r'"m", "e"', '"m", "e", "e"')], "the operation `e` is listed twice", ""),
    "unknown kernel": (
        [(r"^operations = .*$", ""), (r"(?s)softmax_y\](.*)softmax_y.loops", r"softmax]\1softmax.loops")],
        "there is no kernel `softmax`", "softmax_y",
    ),
    "tile of another rank": (
        [(TILE, "tile = [8, 8]")], "`tile` must have one number for each dimension of the grid [512], but it has 2", "",
    ),
    "tile too large": ([(TILE, "tile = [513]")], "a tile of 513 does not fit a dimension of 512", ""),
    "tile of nothing": ([(TILE, "tile = [0]")], "a tile of 0 does not fit", ""),
    "tile of text": ([(TILE, 'tile = ["a"]')], "`tile` must be a list of whole numbers", ""),
    "loops": ([(r"^m = .*$", "m = [0, 0]")], "the loops of `m` must be [0, 1] in some order", ""),
    "loops of another": ([(r"^m = .*$", "mm = [0, 1]")], "`mm` is not an operation of this", "did you mean `m`?"),
    "a name that is taken": (
        [(r"(?s)softmax_y\](.*)softmax_y.loops", r"softmax]\1softmax.loops")],
        "`softmax` cannot be the name of a kernel of this op", "softmax_softmax",
    ),
    "unknown key": ([(r"^tile = ", "tiles = ")], "unknown key `tiles`", "did you mean `tile`?"),
    "no target": ([(r"^target = .*$", "")], "a plan needs `target`", ""),
    "option": (
        [(r"y.loop_nest\]$", "y.loop_nest]\nthreads = 3")], "family `loop_nest` has no option `threads`", "",
    ),
    "inlined reduction": (
        [(r"^inline = .*$", 'inline = ["s"]'), (r'"e", "s", "y"', '"e", "y"')],
        "`s` cannot be computed inside its readers: it is a reduction", "",
    ),
    "inlined result": (
        [(r"^inline = .*$", 'inline = ["y"]'), (r'"s", "y"', '"s"')],
        "`y` cannot be computed inside its readers: it is a result", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake, obeyed):
    changes, message, hint = MISTAKES[mistake]
    with pytest.raises(CallError) as error:
        obeyed("softmax", edited(written("softmax"), *changes))
    (diagnostic,) = error.value.diagnostics
    assert message in diagnostic.message
    assert hint in (diagnostic.hint or "")
    assert diagnostic.span.source.name.endswith("softmax.sched.toml") and diagnostic.span.line > 8  # behind the header
    if mistake in ("unknown operation", "operation twice", "inlined reduction", "inlined result"):
        lines = diagnostic.span.source.text.splitlines()
        assert re.match("operations|inline", lines[diagnostic.span.line - 1])
        assert f"`{diagnostic.span.source.text[diagnostic.span.start + 1 : diagnostic.span.end - 1]}`" in message


def test_illegal_fusion_has_the_planners_reason(obeyed):
    sizes = SIZES["mlp"] | {"F": 1 << 18}
    own = lowered("mlp", sizes=sizes)[1].plan
    nodes = [n for k in own.kernels for n in k.nodes]
    head = f'[[plan]]\nprogram = "{own.signature}"\ntarget = "cpu"\n'
    text = f"{head}[plan.kernels.mlp_all]\noperations = {nodes}\n"
    with pytest.raises(CallError, match="cannot be one kernel: both are contractions"):
        obeyed("mlp", text, sizes=sizes)


@pytest.mark.parametrize("text, message", [
    ("plan = 3", "`plan` must be a list"),
    ("x =", "not TOML"),
    ("x = " + "[" * 2000, "nested too deeply"),
    ("[[plan]]\nkernels = 3\nprogram=''\ntarget=''", "`kernels` must be a table"),
    ("[[plan]]\nprogram=''\ntarget=''\nkernels.a = 3", "must be a table"),
    ("[[plan]]\nprogram=''\ntarget=''\nkernels.a.loops = {x=1}", "whole numbers"),
])  # fmt: skip
def test_a_file_that_is_none(tmp_path, text, message):
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(CallError, match=re.escape(message)):
        read_schedule(path)
    with pytest.raises(CallError, match="cannot read"):
        read_schedule(tmp_path / "none.toml")


def test_same_groups_in_another_order():
    one = Fixed((("a", "b"), ("c",)), ("d", "e"))
    assert one.same_as(Fixed((("c",), ("b", "a")), ("e", "d")))
    assert not one.same_as(Fixed((("a",), ("b", "c")), ("d", "e")))


def test_more_sram_than_a_block_has_is_refused(tmp_path):
    """Before a GPU is asked for it: `tilec tune` goes on to the next plan."""
    example, sizes, path = str(EXAMPLES / "softmax.tile"), {"M": 64, "N": 16384}, tmp_path / "softmax.sched.toml"
    assert main(["plan", example, "-D", "M=64,N=16384", "--target", "h200", "-o", str(path)]) == 0
    text = re.sub(r"(?m)^tile = .*", "tile = [4]", path.read_text())
    for option, value in {"thread_order": [1, 0], "thread_counts": [4, 64], "residency": '"registers"'}.items():
        text = re.sub(rf"(?m)^{option} = .*", f"{option} = {value}", text)
    path.write_text(text)
    with pytest.raises(CallError, match="262,208 bytes of shared memory, and h200 has 232,448"):
        tilec.compile(example, target="h200", schedule=path).build(**sizes)


@pytest.mark.parametrize("steps, refused", [("[1, 64, 1]", False), ("[2, 64, 1]", True), ("[9, 99, 1]", True)])
def test_more_than_compilers_unroll_is_refused(steps, refused, tmp_path):
    """The assembler once took minutes for what a file asked for. What a tile has no room for is not unrolled."""
    program, path = (
        "op f(x: f32[4, 64, 64]) -> (y: f32[4, 64, 64]) { y[i, j, k] = sin(x[i, j, k]) }",
        tmp_path / "f.toml",
    )
    specialised = lowering.specialised(program)
    own = planned(specialised)
    text = write_schedule(own, specialised)
    assert "vectors = [1, 1, 4]" in text
    edits = {"tile": [4, 64, 64], "thread_order": [2], "thread_counts": [1, 1, 16], "steps": steps}
    path.write_text(edited(text, *((rf"(?m)^{key} = .*", f"{key} = {value}") for key, value in edits.items())))
    if not refused:
        planned(specialised, path)
        return
    with pytest.raises(CallError) as error:
        planned(specialised, path)
    count = 512 if "2" in steps else 1024
    wanted = f"`steps` {steps}, each of 4 elements, would have a thread unroll {count} elements"
    assert wanted in str(error.value)
    assert "the limit is 256" in str(error.value)


def test_rows_that_begin_anywhere_are_one_a_thread(tmp_path):
    """Where a row begins in a vector is found once: a second row of a thread began elsewhere, and was read wrongly."""
    program, path = "op f(x: f64[49, 7, 7]) -> (y: f64[49, 7]) { y[i, j] = sum[k](x[i, j, k]) }", tmp_path / "f.toml"
    specialised = lowering.specialised(program)
    own = planned(specialised)
    text = write_schedule(own, specialised)
    edits = {
        "thread_order": [2, 1],
        "thread_counts": [1, 8, 4],
        "vectors": [1, 1, 2],
        "steps": [1, 1, 1],
        "unaligned": "true",
    }
    text = edited(text, *((rf"(?m)^{key} = .*", f"{key} = {value}") for key, value in edits.items()))
    for tile, refused in (([1, 7], False), ([34, 7], True)):
        path.write_text(edited(text, (r"(?m)^tile = .*", f"tile = {tile}")))
        with pytest.raises(CallError) if refused else nullcontext() as error:
            planned(specialised, path)
    assert "with `unaligned`, a thread has one row, and a tile of 34 rows needs more than 1 threads" in str(error.value)


def test_a_block_of_a_contraction_has_one_place_of_the_batch(tmp_path):
    """With a tile of several, all but the first were left as they were."""
    program, path = (
        "op f(x: f16[B, M, K], w: f16[B, K, N]) -> (y: f32[B, M, N]) { y[b, i, j] = sum[k](x[b, i, k] * w[b, k, j]) }",
        tmp_path / "f.toml",
    )
    specialised = lowering.specialised(program, None, {"B": 4, "M": 512, "N": 32, "K": 32})
    own = planned(specialised)
    text = write_schedule(own, specialised)
    for tile, why in (
        ([4, 32, 32], "dimension 0 is a batch dimension"),
        ([1, 512, 32], "rows, and the tile has 512"),
    ):
        path.write_text(edited(text, (r"(?m)^tile = .*", f"tile = {tile}")))
        with pytest.raises(CallError) as error:
            planned(specialised, path)
        assert why in str(error.value)


@pytest.mark.parametrize("sizes", [{"M": 1024, "N": 1, "K": 512}, {"M": 1, "N": 1024, "K": 512}])
def test_contractions_of_a_vector_are_read_back(sizes, tmp_path):
    """The tile of a kernel without rows, or without columns, could not be checked."""
    program = "op f(x: f8e4m3[M, K], w: f16[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }"
    specialised, path = lowering.specialised(program, None, sizes), tmp_path / "f.toml"
    own = planned(specialised)
    assert () in (own.kernels[0].options.rows, own.kernels[0].options.columns)
    path.write_text(write_schedule(own, specialised))
    assert planned(specialised, path) == own


def test_rows_that_are_contiguous_stay_in_shared_memory_of_warps(tmp_path):
    """The planner's own option was refused as soon as another one was edited."""
    program = """op f(x: bf16[D, M], y: bf16[N, D]) -> (r: f32[M]) {
    s[i, j] = sum[k](x[k, i] * y[j, k])
    r[i] = logsumexp[j](s[i, j])
}"""
    specialised, path = lowering.specialised(program, None, {"M": 4096, "N": 8192, "D": 128}), tmp_path / "f.toml"
    (kernel,) = (own := lowering.lowered(specialised, target="a100", end="plan", emit=False)[1].plan).kernels
    assert kernel.options.kept_left and not kernel.options.left_k_major
    stages = 5 - kernel.options.stages
    path.write_text(edited(write_schedule(own, specialised), ("(?m)^stages = .*", f"stages = {stages}")))
    result = lowering.lowered(specialised, target="a100", schedule=read_schedule(path), end="plan", emit=False)[1]
    assert result.plan.kernels[0].options.stages == stages
