"""Programs compiled by a process of their own are those that this process would make; what does not compile is reported by this
one."""

import json
from dataclasses import replace

import pytest

from tilec import TileError
from tilec.core import target as targets_of
from tilec.core import targets
from tilec.core.diagnostics import Source
from tilec.core.dtypes import DTYPES
from tilec.driver import frontend, program_compiler
from tilec.driver.frontend import PROGRAMS, read_program
from tilec.driver.recipe import Recipe, end_unused_compilers, load_compilers
from tilec.process import compile_server
from tilec.runtime import cache, generated
from tilec.runtime.cuda import cubins

pytestmark = pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")

TEXT = """op f(x: f32[M, N], t: f32[M, N]) -> (y: f32[M, N], s: f32[M]) {
    s[i]    = sum[j](x[i, j])
    y[i, j] = t[i, j] if j > 0 else s[i] * x[i, j]
}"""
SMALL = (DTYPES["f32"], (4, 8))


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """With an empty cache, and a process that compiles programs. The requests that it was asked, with its replies."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    compile_server.start(PROGRAMS)
    found, ask = [], compile_server.ask

    def noted(kind, request, *hear):
        reply = ask(kind, request, *hear)
        if kind == PROGRAMS:
            found.append((request, reply))
        return reply

    monkeypatch.setattr(compile_server, "ask", noted)
    yield found
    compile_server.give_up()
    assert not compile_server.running(PROGRAMS), "later tests of this process compile in it"


def recipe(text=TEXT, target="h200", **more):
    of = dict(inputs=(SMALL, SMALL), sizes={}) | more
    chosen = targets.load(target) if isinstance(target, str) else target
    return Recipe(read_program(Source("<program>", text)), "f", target=chosen, **of)


@pytest.mark.some(2)
@pytest.mark.parametrize("more", [{}, {"target": "cpu"}, {"donated": [(0, 1)]}, {"inputs": None, "sizes": {"M": 4, "N": 8}}])
def test_it_makes_what_this_process_makes(asked, more):
    made = recipe(**more).compiled()
    assert ["op" in request for request, _ in asked] == [False, True] and all("error" not in reply for _, reply in asked)
    assert made == recipe(**more).compiled_here()
    assert recipe(**more).compiled() == made and len(asked) == 2, "it is in the cache now"


def test_kernels_are_started_that_the_program_has(asked):
    """What is printed of a kernel before its program is complete is what is compiled of the program."""
    text = """op f(
        q: bf16[4, 64, 64], k: bf16[4, 64, 64], v: bf16[4, 64, 64], w: bf16[64, 128]
    ) -> (y: bf16[4, 64, 128], n: f32[4, 64]) {
        s[b, i, j]: f32 = sum[d](q[b, i, d] * k[b, j, d]) / 8
        m[b, i]    = max[j](s[b, i, j])
        e[b, i, j] = exp(s[b, i, j] - m[b, i])
        o[b, i, d] = sum[j](e[b, i, j] * v[b, j, d]) / sum[j](e[b, i, j])
        y[b, i, c] = sum[d](o[b, i, d] * w[d, c])
        n[b, i]    = sum[c](y[b, i, c] * y[b, i, c])
    }"""
    bf16 = DTYPES["bf16"]
    made = recipe(text, inputs=tuple((bf16, shape) for shape in [(4, 64, 64)] * 3 + [(64, 128)])).compiled()
    assert made.in_flight is not None and len(made.in_flight.cubins) == len(made.emitted.kernels) > 1
    modules = generated.alone(made.emitted.module)
    wanted = {cubins._same(modules[k.name], k, made.registers.get(k.name)) for k in made.emitted.kernels}
    assert wanted == set(made.in_flight.cubins)


def test_targets_and_schedules_go_along(asked, tmp_path):
    h200 = targets.load("h200")
    slow = replace(h200, name="slow", dram=replace(h200.dram, bandwidth_gbs=1.0))
    assert targets_of.from_dict(json.loads(json.dumps(slow.to_dict()))) == slow
    assert recipe(target=slow).compiled().predicted_us == recipe(target=slow).compiled_here().predicted_us
    assert recipe(target=slow).compiled().predicted_us != recipe().compiled().predicted_us
    path = tmp_path / "f.sched.toml"
    path.write_text("no schedule")
    with pytest.raises(TileError):
        recipe(schedule=path).compiled()
    assert "error" in asked[-1][1]


def test_mistakes_are_reported_by_this_process(asked):
    with pytest.raises(TileError, match="unknown name `z`"):
        recipe(TEXT.replace("s[i] *", "z[i] *"))
    assert "error" in asked[0][1]


def test_files_are_read_by_this_process(asked, tmp_path):
    path = tmp_path / "f.tile"
    path.write_text(TEXT)
    assert read_program(Source(str(path), TEXT)).ops["f"].name == "f" and asked == []


def test_imports_of_texts_are_read_by_this_process(asked, tmp_path, monkeypatch):
    """They are those of the folder in which it is, as they are now."""
    for name in "bc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "lib.tile").write_text(f"def {name}(x) {{ return x }}\n")
        monkeypatch.chdir(tmp_path / name)
        program = read_program(Source("<program>", f'import "lib.tile"\ny[i] = {name}(x[i])'))
        assert list(program.imports) == [str(tmp_path / name / "lib.tile")] and "error" in asked[-1][1]


def test_nothing_is_asked_where_no_process_was_started(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(compile_server, "_running", {})
    assert frontend.ask_compiler(Source("<program>", TEXT), {}) is None
    assert recipe().compiled() == recipe().compiled_here() and not compile_server.running(PROGRAMS)


def test_processes_that_nobody_asked_end(asked):
    load_compilers("cuda")
    compilers = [compile_server._running[k].process for k in (PROGRAMS, "tilec.runtime.cuda.compile")]
    end_unused_compilers("cuda")
    assert all(p.poll() is not None for p in compilers) and not compile_server.running(PROGRAMS)
    load_compilers("cpu")
    recipe().compiled()
    end_unused_compilers("cpu")
    assert compile_server.running(PROGRAMS)


def test_one_program_is_read_once(asked):
    program_compiler._program.cache_clear()
    answer = program_compiler.answer({"name": "<program>", "text": TEXT})
    assert answer["ops"]["f"] == [("x", "f32"), ("t", "f32")]
    assert program_compiler._program("<program>", TEXT) is program_compiler._program("<program>", TEXT)


def test_a_command_that_found_all_in_the_cache_starts_none_before_it_asks(asked, monkeypatch):
    compile_server.give_up()
    load_compilers("cpu")
    assert PROGRAMS in compile_server._running
    end_unused_compilers("cpu")  # its next run is told
    load_compilers("cpu")
    assert compile_server._running == {} and compile_server.running(PROGRAMS)
    recipe().compiled()
    assert PROGRAMS in compile_server._running
    end_unused_compilers("cpu")
    compile_server._end(compile_server._running.pop(PROGRAMS))
    load_compilers("cpu")  # something was compiled
    assert PROGRAMS in compile_server._running
    end_unused_compilers("cpu")
    monkeypatch.setattr("sys.argv", ["another"])
    load_compilers("cpu")
    assert PROGRAMS in compile_server._running
    end_unused_compilers("cpu")
