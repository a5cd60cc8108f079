"""Programs and files that would take for ever, or show what is none of theirs: each gets a message soon."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import suppress

import numpy as np
import pytest

import tilec
from tilec.core.diagnostics import CallError, Source, TileError
from tilec.core.source import read_source
from tilec.core.toml import parse_toml
from tilec.dsl import modules
from tilec.dsl.mistakes import read
from tilec.dsl.specialise import specialise
from tilec.process import reading

OP = "op g0(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }\n"


def twice(levels: int, calls: int = 2) -> str:
    """Ops each of which calls the one before several times."""
    lines = [OP]
    for k in range(1, levels):
        body = "\n".join(f"a{c} = g{k - 1}({f'a{c - 1}' if c else 'x'})" for c in range(calls))
        lines.append(f"op g{k}(x: f32[N]) -> (y: f32[N]) {{ {body}\n y[i] = a{calls - 1}[i] }}\n")
    return "".join(lines)


def reported(text: str, name: str = "<program>") -> list[str]:
    with pytest.raises(TileError) as raised:
        read(Source(name, text))
    return [d.message for d in raised.value.diagnostics]


@pytest.mark.parametrize("levels, calls, first", [(24, 2, "g13"), (9, 100, "g2"), (5, 9, None), (20, 30, "g3")])
def test_ops_that_call_ops_have_a_limit(levels, calls, first):
    text = twice(levels, calls)
    if first is None:
        assert read(Source("<program>", text))
    else:
        (message,) = [m for m in reported(text) if "deep" not in m][:1]
        assert message.startswith(f"`{first}` unfolds to ") and "10000" in message


def test_calls_of_ops_are_100_deep():
    text = OP + "".join(f"op g{k}(x: f32[N]) -> (y: f32[N]) {{ y = g{k - 1}(x) }}\n" for k in range(1, 400))
    assert reported(text)[0] == "`g100` calls ops 101 deep, with the ops that it calls; the limit is 100"
    assert specialise(read(Source("<program>", text[: text.index("op g100")])), "g99", None, {"N": 3}).equations


def test_an_op_is_worked_out_once_for_each_type_and_size(monkeypatch):
    from tilec.dsl.check import Elaborator

    runs = []
    whole = Elaborator.run
    monkeypatch.setattr(Elaborator, "run", lambda self: (runs.append(self.op.name), whole(self))[1])
    text = twice(8) + "op two(a: f32[N], b: f32[M]) -> (y: f32[N], z: f32[M]) { y = g7(a)  z = g7(b) }"
    program = read(Source("<program>", text))
    runs.clear()
    names = [e.name for e in specialise(program, "two", None, {"N": 3, "M": 4}, checked=True).equations]
    assert len(runs) == 1 + 2 * 8 and len(set(names)) == len(names) == 2 * (2**8 - 1)


def test_mistakes_in_an_op_that_is_called_twice_are_reported_once():
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i + 1] if i + K < N else 0 }\n"
    assert reported(text + "op g(x: f32[N]) -> (y: f32[N]) { a = f(x)  y = f(a) }")[0] == "unknown name `K`"


def test_functions_of_all_equations_have_one_limit(monkeypatch):
    from tilec.dsl import inline, inline_calls

    for module in (inline, inline_calls):
        monkeypatch.setattr(module, "MAX_UNFOLDED", 5000)
    functions = "def g0(x) { return x + x }\n"
    functions += "".join(f"def g{k}(x) {{ return g{k - 1}(x) + g{k - 1}(x) }}\n" for k in range(1, 8))
    body = "".join(f"a{k}[i] = g7(x[i])\n" for k in range(40))
    assert reported(functions + f"op f(x: f32[N]) -> (y: f32[N]) {{ {body} y[i] = a1[i] }}") == [
        "the functions that are called unfold to more than 5000 operations"
    ]


# ---- imports ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_once_however_many_import_it(tmp_path, monkeypatch):
    for k in range(24):
        for side in "ab":
            text = f'import "l{k + 1}a.tile"\nimport "l{k + 1}b.tile"\ndef f{side}{k}(x) {{ return x }}\n'
            (tmp_path / f"l{k}{side}.tile").write_text(text)
    for side in "ab":
        (tmp_path / f"l24{side}.tile").write_text(f"def f{side}24(x) {{ return x }}\n")
    parsed = []
    whole = modules.parse
    monkeypatch.setattr(modules, "parse", lambda source: (parsed.append(source.name), whole(source))[1])
    assert read(Source(str(tmp_path / "m.tile"), 'import "l0a.tile"\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = fa0(x[i]) }'))
    assert len(parsed) == len(set(parsed)) == 49


@pytest.fixture
def folders(tmp_path):
    """A program's folder, one inside it, and one beside it."""
    for name in ("main/inner", "beside"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("main/here", "main/inner/deep", "beside/there", "secret"):
        (tmp_path / f"{name}.tile").write_text("def f(x) { return 2 * x }\n")
    (tmp_path / "main" / "notes.txt").write_text("root:x:0:0\n")
    (tmp_path / "main" / "link.tile").symlink_to(tmp_path / "secret.tile")
    (tmp_path / "main" / "zero.tile").symlink_to("/dev/zero")
    (tmp_path / "main" / "up.tile").write_text('import "../secret.tile"\ndef g(x) { return x }\n')
    (tmp_path / "main" / "folder.tile").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "path, reason",
    [
        ("../secret.tile", "it is not below the folder"),
        ("link.tile", "it is not below"),
        ("zero.tile", "it is not below"),
        ("inner/../../secret.tile", "it is not below"),
        ("../../../../../../../../etc/passwd", "ends in `.tile`"),
        ("notes.txt", "ends in"),
        ("../beside/there.tile", "it is not below"),
        ("folder.tile", "there is no such file"),
        ("there.tile", "there is no such file"),
        ("/etc/passwd", "must be relative"),
        ("none.tile", "there is no such file"),
        ("../none.tile", "it is not below"),
    ],
)
def test_imports_lie_below_the_importing_file(folders, path, reason):
    (message,) = reported(f'import "{path}"\ny[i] = x[i]', str(folders / "main" / "m.tile"))
    assert message.startswith(f"cannot import `{path}`: ") and reason in message


def test_imports_of_imports_do_not_leave_their_folder(folders):
    messages = reported('import "up.tile"\ny[i] = x[i]', str(folders / "main" / "m.tile"))
    assert len(messages) == 1 and "`../secret.tile`: it is not below" in messages[0]


def test_imports_from_a_path(folders):
    main = folders / "main" / "m.tile"
    x = np.ones(3, np.float32)
    for imported, path in (
        ("there.tile", folders / "beside"),
        ("there.tile", [str(folders / "none"), str(folders / "beside")]),
        ("../beside/there.tile", folders / "beside"),
        ("../secret.tile", str(folders)), ("here.tile", ()), ("inner/deep.tile", ()),
    ):  # fmt: skip
        main.write_text(f'import "{imported}"\ny[i] = f(x[i])')
        op = tilec.compile(main, path=path, target="cpu")
        assert op(x).tolist() == [2, 2, 2]
        assert pickle.loads(pickle.dumps(op))(x).tolist() == [2, 2, 2]
    text = tilec.compile('import "there.tile"\ny[i] = f(x[i])', path=folders / "beside", target="cpu")
    assert text(x).tolist() == [2, 2, 2]
    with pytest.raises(TileError, match="there is no such file"):
        tilec.compile('import "there.tile"\ny[i] = f(x[i])', target="cpu")
    with pytest.raises(CallError, match="path= must be a folder or a list of folders, not"):
        tilec.compile("y[i] = x[i]", path=3)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/full"])
@pytest.mark.parametrize("suffix", [".tile", ".toml"])
def test_devices_are_not_read(tmp_path, device, suffix):
    link = tmp_path / f"device{suffix}"
    link.symlink_to(device)
    with pytest.raises(TileError, match="it is a device, not a file"):
        if suffix == ".tile":
            read_source(link)
        else:
            tilec.compile("op f(x: f32[4]) -> (y: f32[4]) { y[i] = x[i] }", target=str(link))
    with pytest.raises(CallError, match=r"cannot read schedule .*: it is a device, not a file"):
        tilec.compile("y[i] = x[i]", schedule=link)


def test_pipes_are_read_with_a_limit(tmp_path):
    pipe = tmp_path / "pipe.tile"
    os.mkfifo(pipe)

    def given(data: bytes) -> Source:
        def write() -> None:
            with suppress(BrokenPipeError):
                pipe.write_bytes(data)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            return read_source(pipe)
        finally:
            thread.join()

    assert given(b"y[i] = x[i]").text == "y[i] = x[i]"
    with pytest.raises(TileError, match=f"cannot read '.*pipe.tile': it has more than {reading.MOST_BYTES} bytes"):
        given(b"#" * (reading.MOST_BYTES + 1))
    assert read_source(tmp_path.joinpath("/dev/null")).text == ""


@pytest.mark.parametrize(
    "text, reason",
    [
        ("x = " + "[" * 9000, "nested too deeply"),
        ("x = " + "{a=" * 9000, "nested too deeply"),
        ("x = " + "9" * 9000, "too many digits"),
        (".".join("a" * 500_000) + " = 1", "nested too deeply"),
        ("[" + " . ".join("a" * 500_000) + "]", "nested too deeply"),
        ("\x1b[31m = 1", "not TOML"),
        ("[[" * 9000, "not TOML"),
    ],
    ids=range(7),
)
def test_files_of_toml_have_limits(text, reason):
    with pytest.raises(CallError, match=reason) as raised:
        parse_toml(text, "a.toml")
    assert "\x1b" not in str(raised.value) and len(str(raised.value)) < 400


def test_names_are_shown_by_their_beginning():
    for text in (f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = {'n' * 90_000}[i] }}", "y = " + "9" * 90_000):
        with pytest.raises(TileError) as raised:
            read(Source("<program>", text))
        assert all(len(str(d)) < 1500 for d in raised.value.diagnostics)
