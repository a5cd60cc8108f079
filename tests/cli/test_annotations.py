"""`check --format`: annotations of GitHub, and SARIF, which keeps to its schema."""

import json

import jsonschema
import pytest
from tools import TESTS
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures

# The part of the standard's schema for all that is used, without descriptions; what is not in it must not stand in the output.
SCHEMA = json.loads((TESTS / "golden" / "sarif-2.1.0.json").read_text())
WRONG = "y[i] = x[i] + foo(x[i])\nz[i] = x[i] +\n  bar(  # 50% é\n  x[i])\nz[i] = 3 * x[i]\n"
ODD = "op odd(x: f32[N]) -> (z: f32[N]) { z[i] = 0 if i % 2 == 0 else x[i - 2] }\n"


@pytest.fixture(autouse=True)
def programs(folder):
    (folder / "a, b.tile").write_text(WRONG)
    (folder / "odd.tile").write_text(ODD)


def test_github(tilec, folder):
    status, out, err = tilec("check", "--format", "github", "a, b.tile", "softmax.tile", "odd.tile", "none.tile")
    first, second, third, fourth, fifth = out.splitlines()
    assert status == 1 and err == "4 mistakes\n"
    assert first == "::error file=a%2C b.tile,line=1,endLine=1,col=15,endColumn=23,title=tilec::unknown function `foo`"
    assert second == "::error file=a%2C b.tile,line=3,endLine=4,col=3,endColumn=7,title=tilec::unknown function `bar`"
    assert third.startswith("::error file=a%2C b.tile,line=5,endLine=5,col=1,") and third.endswith(
        "::`z` is defined twice%0Ahint: a name is defined once; choose another one%0Aa, b.tile:2:1: note: it is defined here first"
    )
    assert fourth.startswith("::warning file=odd.tile,line=1,") and "`odd` is refused at all sizes" in fourth
    assert fifth == "::error title=tilec::there is no file 'none.tile'"


def test_sarif(tilec, folder):
    status, out, _ = tilec("check", "--format", "sarif", "a, b.tile", "odd.tile", "none.tile", folder / "a, b.tile")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft4Validator)
    assert status == 1 and len(found["runs"]) == 1
    foo, bar, defined, odd, none, *rest = found["runs"][0]["results"]
    rules = {rule["id"] for rule in found["runs"][0]["tool"]["driver"]["rules"]}
    assert [(r["ruleId"], r["level"]) for r in (foo, odd)] == [("mistake", "error"), ("doubt", "warning")]
    assert {r["ruleId"] for r in found["runs"][0]["results"]} == rules
    (at,) = bar["locations"]
    assert at["physicalLocation"]["artifactLocation"]["uri"] == "a%2C%20b.tile"
    assert at["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 3, "endLine": 4, "endColumn": 8}
    (related,) = defined["relatedLocations"]
    assert related["message"]["text"] == "it is defined here first" and related["physicalLocation"]["region"]["startLine"] == 2
    assert "locations" not in none
    assert rest[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")


def test_programs_without_mistakes(tilec):
    assert tilec("check", "--format", "github", "softmax.tile") == (0, "", "")
    status, out, _ = tilec("check", "--format", "sarif", "softmax.tile")
    assert status == 0 and json.loads(out)["runs"][0]["results"] == []


def test_ranges_are_text(tilec):
    status, _, err = tilec("check", "--ranges", "--format", "sarif", "softmax.tile")
    assert status == 1 and "--ranges does not go with --format sarif" in err
