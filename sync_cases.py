import sys, pathlib
sys.path.insert(0, "tests")
from sanitize import cases
T = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }"
out = pathlib.Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True)
for m in (3, 8, 9, 40, 80, 120, 160, 400):
    print(cases.prepare(cases.Case(f"s{m}", T, "f", {"M": m, "N": 65536}), out, "cuda"))
print(cases.prepare(cases.Case(f"o", T, "f", {"M": 160, "N": 65544}), out, "cuda"))
