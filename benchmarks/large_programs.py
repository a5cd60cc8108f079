"""Large programs as a front end for models would write them, as `.tile` texts: `LARGE` has them by name.

- chain: elementwise statements of one shape, each of which reads the one before;
- small: statements of many shapes, which read one input and are all results;
- updates: an optimiser's updates of parameters of many shapes (momentum);
- transformer: embedding, layers of attention and MLP with layer norms, and a product with the table of words;
- backward: a densely connected network of convolutions, its loss, and the gradients of all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Large:
    """`text` makes the program for a number of statements, layers or parameters; `count` is what the command measures."""

    text: Callable[[int], str]
    count: int


def chain(statements: int, length: int = 1 << 16) -> str:
    """Statements over `length` elements: sums, products, choices and a function now and then."""
    forms = (
        "1.001 * {0}[i] + 0.01", "{0}[i] - 0.5 * x[i]", "max({0}[i], -2.0)", "{0}[i] * w[i]", "min({0}[i], 3.0)",
        "tanh({0}[i])",
    )  # fmt: skip
    names = ["x", *(f"t{n}" for n in range(1, statements)), "y"]
    lines = [f"{names[n + 1]}[i] = {forms[n % len(forms)].format(names[n])}" for n in range(statements)]
    return _op("chain", {"x": (length,), "w": (length,)}, {"y": (length,)}, lines)


def small(statements: int) -> str:
    """Statements of sums and products of slices of one vector, of up to 40 times 24 elements."""
    shapes = {f"y{n}": (8 + n % 33, 4 + n % 21) for n in range(statements)}
    lines = [f"{name}[i, j] = {1 + n % 7}.5 * x[i + 0] + x[j + 0]" for n, name in enumerate(shapes)]
    return _op("small", {"x": (64,)}, shapes, lines)


def updates(parameters: int) -> str:
    """New momentum and new values of each parameter."""
    shapes = [((256, 64 + 8 * (n % 5)), (64 + 8 * (n % 5),), (64, 256), (1000 + n,))[n % 4] for n in range(parameters)]
    inputs, results, lines = {}, {}, []
    for n, shape in enumerate(shapes):
        inputs |= {f"p{n}": shape, f"g{n}": shape, f"m{n}": shape}
        results |= {f"mm{n}": shape, f"pp{n}": shape}
        at = "[" + ", ".join("ijk"[: len(shape)]) + "]"
        lines += [f"mm{n}{at} = 0.9 * m{n}{at} + g{n}{at}", f"pp{n}{at} = p{n}{at} - 0.01 * mm{n}{at}"]
    return _op("updates", inputs, results, lines)


def transformer(layers: int, rows: int = 128, width: int = 256, heads: int = 4, words: int = 1000, dtype: str = "f32") -> str:
    """A decoder of causal attention over `rows` words, `width` features, MLPs of four times that."""
    inputs: dict[str, tuple[int, ...]] = {"table": (words, width), "places": (rows, width)}
    lines = ["h0[i, c] = table[ids[i], c] + places[i, c]"]
    each = width // heads

    def norm(x: str, p: str, n: int) -> list[str]:
        inputs.update({f"{p}g{n}": (width,), f"{p}b{n}": (width,)})
        return [
            f"{p}m{n}[i] = mean[c]({x}[i, c])",
            f"{p}c{n}[i, c] = {x}[i, c] - {p}m{n}[i]",
            f"{p}v{n}[i] = mean[c]({p}c{n}[i, c] * {p}c{n}[i, c])",
            f"{p}o{n}[i, c]: {dtype} = {p}c{n}[i, c] * rsqrt({p}v{n}[i] + 1e-5) * {p}g{n}[c] + {p}b{n}[c]",
        ]

    for n in range(layers):
        for name in "qkv":
            inputs[f"w{name}{n}"] = (heads, each, width)
        inputs |= {f"wo{n}": (width, width), f"w1{n}": (width, 4 * width), f"b1{n}": (4 * width,)}
        inputs |= {f"w2{n}": (4 * width, width), f"b2{n}": (width,)}
        lines += norm(f"h{n}", "l", n)
        lines += [f"{p}{n}[h, i, e]: {dtype} = sum[c](lo{n}[i, c] * w{p}{n}[h, e, c])" for p in "qkv"]
        lines += [
            f"s{n}[h, i, j] = sum[e](q{n}[h, i, e] * k{n}[h, j, e]) * {each**-0.5} if j <= i else -inf",
            f"p{n}[h, i, j] = softmax[j](s{n}[h, i, j])",
            f"a{n}[h, i, e]: {dtype} = sum[j](p{n}[h, i, j] * v{n}[h, j, e])",
            f"x{n}[i, d]: {dtype} = sum[c](a{n}[c // {each}, i, c % {each}] * wo{n}[c, d]) + h{n}[i, d]",
        ]
        lines += norm(f"x{n}", "n", n)
        lines += [
            f"f{n}[i, d] = sum[c](no{n}[i, c] * w1{n}[c, d])",
            f"e{n}[i, d]: {dtype} = gelu_tanh(f{n}[i, d] + b1{n}[d])",
            f"h{n + 1}[i, d]: {dtype} = sum[c](e{n}[i, c] * w2{n}[c, d]) + b2{n}[d] + x{n}[i, d]",
        ]
    lines += norm(f"h{layers}", "z", 0)
    lines += ["y[i, w] = sum[c](zo0[i, c] * table[w, c])"]
    parameters = [f"{name}: {dtype}[{', '.join(map(str, shape))}]" for name, shape in inputs.items()]
    return _written("transformer", [f"ids: i32[{rows}]", *parameters], [f"y: f32[{rows}, {words}]"], lines)


def backward(layers: int, images: int = 2, channels: int = 8, side: int = 8) -> str:
    """Layers that each convolve the normalised results of all layers before: 11 statements for each pair, 15 for each layer."""
    image, all_ = f"f32[{images}, {channels}, {side}, {side}]", "b, c, h, w"
    inputs, results = [f"x0: {image}", f"aim: {image}"], []
    lines: list[str] = []
    count = images * side * side

    def add(total: dict[int, str], n: int, name: str, what: str) -> None:
        """Adds a tensor to the sum of others."""
        if n in total:
            lines.append(f"{name}[{all_}] = {total[n]}[{all_}] + {what}[{all_}]")
            what = name
        total[n] = what

    sums: dict[int, str] = {0: "x0"}
    for n in range(layers):
        x = sums[n]
        lines += [
            f"m{n}[c] = mean[b, h, w]({x}[{all_}])",
            f"d{n}[{all_}] = {x}[{all_}] - m{n}[c]",
            f"v{n}[c] = mean[b, h, w](d{n}[{all_}] * d{n}[{all_}])",
            f"r{n}[c] = rsqrt(v{n}[c] + 1e-5)",
            f"u{n}[{all_}] = d{n}[{all_}] * r{n}[c]",
        ]
        for k in range(n + 1):
            of = f"{n}_{k}"
            inputs += [f"g{of}: f32[{channels}]", f"b{of}: f32[{channels}]", f"f{of}: f32[{channels}, {channels}, 3, 3]"]
            lines += [
                f"z{of}[{all_}] = u{k}[{all_}] * g{of}[c] + b{of}[c]",
                f"a{of}[{all_}] = max(z{of}[{all_}], 0.0)",
                f"y{of}[b, o, h, w] = sum[c, r, s](pad(a{of}[b, c, h + r - 1, w + s - 1], 0) * f{of}[o, c, r, s])"
                f" where h in 0:{side}, w in 0:{side}",
            ]
            add(sums, n + 1, f"s{of}", f"y{of}")
    lines += [f"loss = mean[{all_}](({sums[layers]}[{all_}] - aim[{all_}]) * ({sums[layers]}[{all_}] - aim[{all_}]))"]
    results += ["loss: f32"]
    lines += [f"dx{layers}[{all_}] = {2 / (count * channels)} * ({sums[layers]}[{all_}] - aim[{all_}])"]
    of_normal: dict[int, str] = {}
    for n in reversed(range(layers)):
        for k in range(n + 1):
            of = f"{n}_{k}"
            results += [f"dg{of}: f32[{channels}]", f"db{of}: f32[{channels}]", f"df{of}: f32[{channels}, {channels}, 3, 3]"]
            lines += [
                f"da{of}[{all_}] = sum[o, r, s](pad(dx{n + 1}[b, o, h - r + 1, w - s + 1], 0) * f{of}[o, c, r, s])"
                f" where h in 0:{side}, w in 0:{side}",
                f"df{of}[o, c, r, s] = sum[b, h, w](pad(a{of}[b, c, h + r - 1, w + s - 1], 0) * dx{n + 1}[b, o, h, w])",
                f"dz{of}[{all_}] = da{of}[{all_}] if z{of}[{all_}] > 0 else 0",
                f"dg{of}[c] = sum[b, h, w](dz{of}[{all_}] * u{k}[{all_}])",
                f"db{of}[c] = sum[b, h, w](dz{of}[{all_}])",
                f"du{of}[{all_}] = dz{of}[{all_}] * g{of}[c]",
            ]
            add(of_normal, k, f"ds{of}", f"du{of}")
        du = of_normal[n]
        lines += [
            f"e{n}[c] = mean[b, h, w]({du}[{all_}])",
            f"q{n}[c] = mean[b, h, w]({du}[{all_}] * u{n}[{all_}])",
            f"dx{n}[{all_}] = r{n}[c] * ({du}[{all_}] - e{n}[c] - u{n}[{all_}] * q{n}[c])",
        ]
    results += [f"dx0: {image}"]
    return _written("backward", inputs, results, lines)


def _op(name: str, inputs: dict[str, tuple[int, ...]], results: dict[str, tuple[int, ...]], lines: Sequence[str]) -> str:
    given, made = ([f"{n}: f32[{', '.join(map(str, s))}]" for n, s in each.items()] for each in (inputs, results))
    return _written(name, given, made, lines)


def _written(name: str, inputs: Sequence[str], results: Sequence[str], lines: Sequence[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"op {name}({', '.join(inputs)}) -> ({', '.join(results)}) {{\n{body}\n}}\n"


LARGE = {
    "chain": Large(chain, 5000),
    "small": Large(small, 5000),
    "updates": Large(updates, 200),
    "transformer": Large(transformer, 24),
    "backward": Large(backward, 31),
}
