"""Programs that the fuzzers found to go wrong."""

# by what was wrong: (program, sizes)
PROGRAMS = {
    "the largest of random numbers is no whole number": (
        "op f(n: i64[M, N]) -> (y: i64[M]) { y[i] = argmax[j](rand(3, n[i, j])) }", {"M": 4, "N": 70}),
    "a shift that NVVM's LLVM 7 drops in unrolled loops": (
        """op f(x: f64[M, N]) -> (y: f32[M, N], z: i32[M, N]) {
            y[i, j] = rand(i64(u32(abs(cummin[i](round(x[i, j]))))), i64(i))
            z[i, j] = i32(cummin[i](x[i, j])) + i32(i // 4)
        }""", {"M": 64, "N": 64}),
    "a large number in a product of 64 bits, in a loop of one thread": (
        "op f(n: i64[M, K], p: i32[M]) -> (y: f8e4m3[M, K]) { "
        "y[i, j] = 9223372036854775806 * ((n[i, p[i] - 9] if p[i] >= 9 and p[i] < 9 + K else 1) + j) }", {"M": 1, "K": 2}),
    "what is made of two scans by an operation that is computed again": (
        """op f(x: f32[M, N]) -> (y: f64[M, N]) {
            t[i, j]: f64 = cumsum[i](x[i, j]) / (abs(cumsum[j](x[i, j])) + 0.5)
            y[i, j] = t[i, j] - 2
        }""", {"M": 0, "N": 2}),
    "a scan in a branch takes in what the branch leaves out": (
        """op f(x: i8[M], n: i64[M], c: bool[N], d: bool[M]) -> (y: i64[N, M], z: f32[N, M]) {
            y[i, j] = cumprod[j](i64(x[n[j] % M])) if d[j] else 1
            z[i, j] = 2 if c[i] else cumsum[j](f32(x[n[j] % M]))
        }""", {"M": 12, "N": 3}),
    "two kernels without a result had one name": (
        """op f(x: f32[N, M], n: i64[M, M]) -> (y: i64[M]) {
            y[j] = (argmin[k](x[k, j]) - max[l](n[l, j])) if false else 1
        }""", {"M": 8, "N": 16}),
    "what is not read tells the sizes of sums": (
        """op f(x: f32[N, M], n: i64[M, M]) -> (y: i64[M], z: i64[M]) {
            a[i, j] = argmin[k](x[k, j]) + n[i, j]
            b[i, j] = max[l](n[l, j]) - n[i, j]
            y[i] = sum[j](a[i, j] if false else 1)
            z[i] = sum[j](b[i, j] if false else 2)
        }""", {"M": 8, "N": 16}),
    "all of true: the update is the state": ("op f(x: f32[M]) -> (y: bool) { y = all[k in 0:M](true) }", {"M": 5}),
    "any of true: the update is a constant": ("op f(x: f32[M]) -> (y: bool[M]) { y[i] = any[k in 0:M](true) }", {"M": 5}),
    "a sum of nothing but zeros": ("op f(x: f32[M]) -> (y: i32) { y = sum[k in 0:M](i32(0)) }", {"M": 5}),
    "a product with zero": ("op f(x: f32[M]) -> (y: i32) { y = prod[k in 0:M](i32(0)) }", {"M": 70}),
    "the largest of the largest": ("op f(x: f32[M]) -> (y: u32) { y = max[k in 0:M](u32(4294967295)) }", {"M": 70}),
    "the place of the largest of zeros": ("op f(x: f32[M]) -> (y: i64) { y = argmax[k in 0:M](u32(0)) }", {"M": 70}),
    "the place of the smallest of the largest": ("op f(x: f32[M]) -> (y: i64) { y = argmin[k in 0:M](u8(255)) }", {"M": 70}),
    "a range that is a quotient of sizes": (
        "op f() -> (y: i16[N // 2, 2 * M]) { y[i, j] = M where i in 0:N // 2, j in 0:2 * M }", {"M": 3, "N": 5}),
    "a typed literal converted to an integer": ("op f(x: f32) -> (y: u64) { y = f32(1.25) }", {}),
    "a size that its type does not hold wraps around": ("op f(x: f32[N]) -> (y: u8) { y = N }", {"N": 300}),
    "literals are rounded by casts": ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = f16(0.1) * x[i] }", {"N": 3}),
    "literals are rounded by declared types": ("op f(x: f32[N]) -> (y: f32[N]) { h: bf16 = 0.1  y[i] = h * x[i] }", {"N": 3}),
    "rows of nothing": ("op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j]) }", {"M": 0, "N": 0}),
    "a reduction inside one that does not begin at 0": (
        "op f(x: f32[M, N, K]) -> (y: f32[M]) { y[i] = sum[k in 1:N](sum[l](x[i, k, l]) * x[i, k, 0]) }",
        {"M": 3, "N": 5, "K": 4}),
    "a scan inside a reduction that does not begin at 0": (
        "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[k in 2:N](cumsum[i](x[i, k])) }", {"M": 3, "N": 5}),
    "a shared argument under an index that does not begin at 0": (
        "def g(p) { return p + p * p } op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[k in 1:N](g(max[l in 0:3](x[i, k] + l))) }",
        {"M": 3, "N": 5}),
    "an index that a range is given for, handed to a function": (
        "def g[j](p) { return p - max[j](p) } op f(x: f32[N]) -> (y: f32) { y = min[k in 0:N](g[k](cumsum[k](x[k // 2]))) }",
        {"N": 4}),
    "bools that threads keep are compared before they are combined": (
        "op f(x: bool[K, N], z: i64) -> (y: f64[N, K], w: i64[K]) {"
        " y[i, j] = f64(all[k in 0:3](x[j, k % N] and x[clamp(z, 0, K - 1), i])) where i in 0:N, j in 0:K"
        " w[j] = sum[k in 0:N](1 if x[j, k] else 0) }", {"K": 12, "N": 3}),
    "a scan of reductions of nothing": ("op f(x: i32[M], u: f32[K]) -> (y: i32[M]) { y[i] = cumsum[i](sum[k in 0:K](x[i])) }",
                                        {"M": 2, "K": 0}),
    "the smallest of unsigned integers, whose neutral element has the upper bit": (
        "op f(x: u32[M, M]) -> (y: u32[M, M]) { y[i, j] = x[i, j] + min[k in 0:1](x[i, i]) }",
        {"M": 64}),
    "an output that holds nothing": (
        "op f(x: f32[M]) -> (y: f32[M, M], z: f32[M, K, M]) {"
        " y[i, j] = x[i] where j in 0:M  z[i, j, l] = x[0] where i in 0:M, j in 0:K, l in 0:M }", {"M": 2, "K": 0}),
    "a conversion to a wider type and back, beside other results": (
        """op f(x: bool[M], h: f16[M], w: f32[M]) -> (a: bool[M], b: f32[M, 1], c: f16[M], d: f64[M]) {
            a[i] = x[i]  t[i]: f32 = h[i]  b[i, j] = h[i] where j in 0:1  c[i] = t[i]  d[i] = w[i]
        }""", {"M": 3}),
    "a negation of a negation, alone": ("op f(x: f32[M]) -> (y: f32[M]) { t[i] = -x[i]  y[i] = -t[i] }", {"M": 5}),
    "a conversion and back that another kernel reads in turn": (
        """op f(x: f16[M, M]) -> (s: f32[M], b: f16[M, M], c: f32[M, M]) {
            t[i, j]: f32 = x[i, j]  s[i] = sum[j](x[i, j])  b[i, j] = t[i, j]  c[i, j] = b[j, i] + s[i]
        }""", {"M": 5}),
    "one integer, twice and as it came": (
        """op f(x: i8[M]) -> (b: i8[M], c: i8[M], d: i8[M]) {
            t[i]: i64 = x[i]  b[i] = i8(t[i])  c[i] = i8(i64(x[i]))  d[i] = b[i]
        }""", {"M": 5}),
    "operations without elements beside others": (
        """op f(x: f32[M, N]) -> (y: f32[M], z: f32[N], w: f32[M, N], u: f32[M, N], p: f32[N, N, M]) {
            y[i] = sum[j](x[i, j])  z[j] = max[i](x[i, j])  w[i, j] = softmax[j](x[i, j])
            u[i, j] = w[i, j]  p[i, j, k] = x[k, j] - y[k] where i in 0:N
        }""", {"M": 3, "N": 0}),
}  # fmt: skip
