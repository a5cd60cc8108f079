"""Texts of generated modules: one kernel by itself."""

from tilec.runtime.generated import alone, functions, identity

MODULE = '''"""Kernels."""

from tilec.runtime.cuda.intrinsics import (
    load_f32,
    wgmma,
)

first = wgmma("bf16", 64)
second = wgmma("bf16", 128)
both = joined(second, 3)

def one(x, y):
    return first(x)


def one_1(x):
    for i in range(3):
        both(x)

    return x
'''


def test_a_kernel_alone_has_the_definitions_that_it_needs():
    one, other = alone(MODULE).values()
    assert "first = " in one and "second" not in one and "both" not in one
    assert "second = " in other and "both = " in other and "first" not in other
    assert other.index("second = ") < other.index("both = ") < other.index("def one_1")
    for name, text in (("one", one), ("one_1", other)):
        assert list(functions(text)) == [name]
        assert identity(functions(text)[name]) == identity(functions(MODULE)[name])
        assert "import (\n    load_f32," in text
