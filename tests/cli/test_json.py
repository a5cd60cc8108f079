"""What `--json` prints is a record by the schema that is shipped, and says what the command's text says."""

import json
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest
from tools.commands import SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

from tilec.cli.json_output import as_json

jsonschema = pytest.importorskip("jsonschema")
COMMANDS = ("check", "plan", "explain", "run", "verify", "doctor")


def schema(command: str) -> dict:
    return json.loads(files("tilec.cli").joinpath(f"schemas/{command}.json").read_text())


@pytest.fixture(name="record")
def record_of(tilec):
    """The record that a command prints, and its exit status."""

    def run(command: str, *arguments: object) -> tuple[dict, int]:
        status, out, _ = tilec(command, *arguments, "--json")
        assert out.isascii()
        found = json.loads(out)
        jsonschema.validate(found, schema(command))
        assert found["schema"] == schema(command)["title"]
        return found, status

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_schemas_are_right_and_refuse_what_lacks_a_field(command, record):
    jsonschema.Draft202012Validator.check_schema(schema(command))
    arguments = {"doctor": (), "check": ("softmax.tile",)}.get(command, SOFTMAX)
    found, status = record(command, *arguments)
    assert status == 0
    for name in found:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({n: v for n, v in found.items() if n != name}, schema(command))


def test_every_command_with_the_option_has_a_schema():
    from tilec.cli.parsers import parser

    (choices,) = [a.choices for a in parser()._actions if a.choices]
    assert {name for name, p in choices.items() if "--json" in p.format_help()} == set(COMMANDS)


def test_numbers_that_json_lacks_are_null():
    assert as_json([math.nan, -math.inf, 1.5, (True, None)]) == [None, None, 1.5, [True, None]]
    with pytest.raises(TypeError):
        as_json({"a": object()})


def test_explain_has_every_kernel_launch_and_decision(record):
    given = ("transformer_block.tile", "-D", "B=1,S=64,E=64,H=2,D=32,F=128", "--target", "h200")
    found, _ = record("explain", *given)
    assert {"q", "k", "v"} <= {name for k in found["kernels"] for name in k["writes"]}
    assert found["time_us"] == pytest.approx(sum(k["cost"]["time_us"] for k in found["kernels"]))
    assert sum(k["cost"]["share"] for k in found["kernels"]) == pytest.approx(1)
    assert any(d["verb"] == "refused" and d["at"]["file"].endswith(".tile") for d in found["decisions"])


def test_explain_has_classes_and_measured_times(record):
    found, _ = record("explain", "softmax.tile", "-D", "M=1..100,N=50")
    assert [c["sizes"] for c in found["classes"]] == ["M = 1", "M = 2..16", "M = 17..100"]
    assert found["varies"] == {"M": "17..100"} and found["sizes"]["M"] == 97
    found, _ = record("explain", *SOFTMAX, "--measure")
    (kernel,) = found["kernels"]
    assert kernel["cost"]["measured_us"] > 0 and found["measured_us"] > 0 and kernel["model"]


def test_check_has_mistakes_with_their_places(record, folder):
    (folder / "wrong.tile").write_text("y[i] = x[i] +\n")
    found, status = record("check", "wrong.tile", "none.tile", "softmax.tile", "--ranges")
    wrong, none, right = found["files"]
    assert status == 1 and found["mistakes"] == 2
    assert wrong["messages"][0]["at"]["line"] in (1, 2) and none["messages"][0]["at"] is None
    assert right["messages"] == [] and right["ops"][0]["tensors"][0] == {
        "name": "x", "type": "f32", "shape": ["M", "N"], "ranges": {},
    }  # fmt: skip


def test_plan_prints_what_the_schedule_file_has(record, tilec, folder):
    found, _ = record("plan", *SOFTMAX)
    assert found["file"] is None and not list(folder.glob("*.sched.toml"))
    (plan,) = found["plans"]
    assert plan["decisions"]["kernels"]["softmax_y"]["operations"] == ["m", "e", "s", "y"]
    found, _ = record("plan", "softmax.tile", "-D", "M=1..100,N=50", "-o", "s.toml")
    assert found["file"] == "s.toml" and len(found["plans"]) == 3 and Path("s.toml").read_text().count("[[plan]]") == 3
    status, out, err = tilec("plan", *SOFTMAX, "--json", "-o", "-")
    assert (status, out) == (1, "") and "--json prints a record" in err


def test_run_has_times_and_comparisons(record):
    found, status = record("run", *SOFTMAX, "--check", "--time", "--save", "y.npz")
    assert status == 0 and found["saved"] == "y.npz" and Path("y.npz").is_file()
    assert [(a["name"], a["shape"], a["origin"]) for a in found["arrays"]] == [
        ("x", [40, 50], "random"), ("y", [40, 50], "result"),
    ]  # fmt: skip
    (compared,) = found["compared"]
    assert compared["within"] and 0 <= compared["error"] <= compared["allowed"]
    time = found["time"]
    assert 0 < time["best_us"] <= time["median_us"] and time["of_limit"] == pytest.approx(time["limit_us"] / time["median_us"])


def test_verify_has_sizes_and_the_stage_that_is_wrong(record, tilec, folder):
    found, status = record("verify", "softmax.tile", "-D", "M=1..3,N=4", "--sizes", "1")
    assert status == 0 and found["verdict"] == "right"
    assert {(s["of"], s["outcome"]) for s in found["sizes"]} == {("M = 1", "right"), ("M = 2..3", "right")}
    tilec("dump", *SOFTMAX, "-o", "ir")
    tiled = folder / "ir" / "04-tile.mlir"
    tiled.write_text(re.sub(r"math.exp\b", "math.exp2", tiled.read_text()))
    found, status = record("verify", *SOFTMAX, "--ir", tiled)
    assert status == 1 and found["verdict"] == "wrong" and found["sizes"][-1]["outcome"] == "wrong"
    assert found["wrong"]["stage"] == "tile" and found["wrong"]["sizes"] == {"M": 40, "N": 50}
    (folder / "edge.tile").write_text("op odd(x: f32[N]) -> (z: f32[N]) { z[i] = 0 if i % 2 == 0 else x[i - 2] }\n")
    found, status = record("verify", "edge.tile")
    assert status == 1 and found["verdict"] == "nothing verified" and found["sizes"][0]["reason"]


def test_doctor_marks_what_is_missing(record, monkeypatch):
    from tilec.cli import doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "lark" else real(name))
    found, status = record("doctor")
    assert status == 1 and found["problems"] == ["lark is not installed: pip install lark"]
    assert {f["name"]: f["missing"] for f in found["software"]}["lark"]
    assert not {f["name"]: f["missing"] for f in found["software"]}["numba"]
