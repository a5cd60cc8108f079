"""One noun for one thing: words that meant several things, or that no other compiler uses, name nothing in the package, and stand
in no name of a test. Words that are never the field's stand in no docstring either."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).parents if (p / "pyproject.toml").exists())
FOLDERS = ("tilec", "dsl", "passes", "runtime")

RETIRED = {  # word: the nouns used instead, and where the word is another's (a library's, or a term of its own)
    "walk": ("traverse; pass over a row; loop over tiles; loop nest",
             ["runtime/cuda/*", "runtime/emit/merged_branches.py", "tilec/*verifier.py"]),  # MLIR's and Python's `walk`
    "sweep": ("loop group", []),
    "place": ("index, coordinates, offset, position, dims, location", []),
    "turn": ("transpose, ping-pong, phase", ["runtime/cpu/math_trig.py"]),  # angles in turns
    "beside": ("register chunks, rows per block, lane offset", []),
    "keep": (
        "residency, on chip, intermediates",  # kept alive, or from LLVM; options of Lark and of AOTAutograd
        ["runtime/*", "dsl/parse.py", "tilec/torch/types.py"],
    ),
    "shift": (
        "unaligned, misalignment, rescale",  # shifts of bits, and those of Lark's parser
        ["runtime/*", "dsl/parse_errors.py", "tilec/core/functions.py", "tilec/core/operators.py",
         "tilec/semantics/interpreter/scalars.py", "dsl/scalars.py",
         "passes/cuda/threaded/reduce.py", "passes/cuda/threaded/unaligned.py"],
    ),
    "chain": (  # contraction chains
        "look-back, blocks per row",
        ["*chain*", "tilec/kernels/*", "tilec/plan/*", "tilec/*fitted.py", "passes/cuda/kernel.py", "passes/cpu/stage.py"],
    ),
    "stream": (  # CUDA's streams, and standard ones
        "chain, prefetch, between",
        ["runtime/*", "tilec/driver/*", "tilec/api.py", "tilec/cli/*", "tilec/jax/*", "tilec/process/logs.py", "dsl/parse.py"],
    ),
    "quick": ("approximate, fast path", ["tilec/lsp/server.py"]),  # the protocol's `QuickFix`
    "early": ("hoist", []),
    "late": ("deferred", []),
    "twice": ("fallback, reread", []),
    "again": ("reread, retry", []),
    "feed": ("operand", ["dsl/parse.py"]),  # Lark's `feed_token`
    "raster": ("grouped order", []),
    "mailbox": ("distributed shared memory buffer", []),
    "tag": ("mbarrier", ["runtime/*/frontend.py", "tilec/torch/*"]),  # `abi_tags` of Numba, `Tag` of PyTorch
    "resident": ("persistent", ["tilec/cost/*"]),  # blocks that are resident on a multiprocessor
    "finish": ("epilogue, complete, store", []),
    "alike": ("isomorphic, mergeable, equal", []),
    "apart": ("uncoalesced, strided, separate, distance", []),
    "together": ("fused, at once, one launch", []),
    "told": ("reported, determined, published", []),
    "untold": ("not shown", []),
    "said": ("reported, message", []),
    "hear": ("on_kernel, on_part", []),
    "heard": ("known", []),
    "begun": ("in flight, started", []),
    "standby": ("warm-up", []),
    "lodging": ("results as scratch", []),
    "lodged": ("results as scratch", []),
    "rests": ("drain copy, remainders", []),
    "dealt": ("thread mapping", []),
    "walked": ("iterated", []),
    "deferred": ("sunk operations", ["runtime/*", "tilec/*"]),  # checks that a later call reports
    "unsaid": ("unsupported", []),
    "inexpressible": ("unsupported", []),
}  # fmt: skip
FORMS = {
    form: word
    for word in RETIRED
    for stem in (word, word.removesuffix("e"))
    for form in (word, stem + "s", word + "s", stem + "es", stem + "ed", stem + "ing")
}
IN_PROSE = frozenset({
    "told", "untold", "said", "hear", "heard", "walk", "walks", "walked", "sweep", "sweeps", "dealt", "standby", "lodging",
    "lodged", "mailbox", "raster", "unsaid", "inexpressible",
})  # fmt: skip
"""Words that no docstring has, but as the name of another's function (`ast.walk`)."""
IN_TESTS = IN_PROSE | {"alike", "apart", "together", "tell", "tells", "begun", "beside", "turned", "rests"}
"""Words that no name of a test, of its module or of a constant of tests has."""
ATTRIBUTES = ("sweep", "quick", "turn", "turned", "chained", "beside", "resident")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SUSPECT = re.compile("|".join(sorted({word[:-1] for word in RETIRED})), re.IGNORECASE)


TERM = re.compile("stream_k|StreamK")  # of the field


def identifiers(text: str) -> set[str]:
    """Names that are defined or used, without those of modules."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "arg", "name", "asname"):
            if isinstance(name := getattr(node, field, None), str):
                found.add(name)
    return found


def words(name: str) -> list[str]:
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", TERM.sub("", name))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_retired_words_name_nothing(folder):
    found = []
    for path in (p for p in FILES if p.relative_to(ROOT).parts[0] == folder):
        here, text = path.relative_to(ROOT).as_posix(), path.read_text()
        for name in sorted(identifiers(text)) if SUSPECT.search(text) else ():
            for word in {FORMS[w] for w in words(name) if w in FORMS}:
                nouns, allowed = RETIRED[word]
                if not any(fnmatch(here, pattern) for pattern in allowed):
                    found.append(f"{here}: `{name}` has the retired word `{word}`; use: {nouns}")
    assert not found, "\n".join(found)


def test_attributes_have_no_retired_words():
    old = re.compile(r"tilec\.(" + "|".join(ATTRIBUTES) + r")\b")
    texts = [p for p in (*FILES, *(ROOT / "tests").rglob("*.tile"), *(ROOT / "docs").glob("*.md")) if p.is_file()]
    assert not [f"{p}: {found.group()}" for p in texts for found in old.finditer(p.read_text())]


def test_allowances_are_needed():
    """A file that no longer needs an exception loses it."""
    for word, (_, allowed) in RETIRED.items():
        for pattern in allowed:
            mine = [p for p in FILES if fnmatch(p.relative_to(ROOT).as_posix(), pattern)]
            used = any(FORMS.get(w) == word for p in mine for n in identifiers(p.read_text()) for w in words(n))
            assert used or not mine, f"`{word}` is not used in {pattern}"


def test_docstrings_have_no_retired_words():
    found = []
    for path in (*FILES, *TESTS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                prose = re.sub(r"`[^`]*`|ast\.walk", "", text)
                for word in IN_PROSE.intersection(re.findall("[a-z]+", prose.lower())):
                    found.append(f"{path.relative_to(ROOT)}: `{word}` in a docstring: {text.partition(chr(10))[0]}")
    assert not found, "\n".join(found)


def test_names_of_tests_have_no_retired_words():
    found = []
    for path in TESTS:
        names = [path.stem] if path != Path(__file__) else []
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.append(node.name)
            elif isinstance(node, ast.Assign):
                names += [t.id for t in node.targets if isinstance(t, ast.Name) and t.id.isupper()]
        for name in names:
            found += [f"{path.relative_to(ROOT)}: `{w}` in `{name}`" for w in IN_TESTS.intersection(words(name))]
    names = [p.stem for p in (ROOT / "tests" / "filecheck").glob("*.tile")]
    found += [f"filecheck/{name}.tile: `{w}`" for name in names for w in IN_TESTS.intersection(words(name))]
    assert not found, "\n".join(found)
