"""The product of two small tiles in registers, as one device function. Every index is constant, so that arrays are registers.

In the kernel's own source, LLVM might not unroll these loops. The sums would then be in local memory.
"""

from __future__ import annotations

from tilec.runtime.cuda.device.define import Array, DeviceFunction, define, memref


def contract(dtype: str, m: int, n: int, k: int, left_major: int, right_major: int) -> DeviceFunction:
    """`f(sums, left, right)`: sums[i, j] += left[i, p] * right[j, p] for every p, rounded once (`fma`).

    `sums` is m x n. `left` is m x k where `left_major`, else k x m; `right` likewise n x k or k x n.
    """

    def left(i: int, p: int) -> int:
        return i * k + p if left_major else p * m + i

    def right(j: int, p: int) -> int:
        return j * k + p if right_major else p * n + j

    lines = [f"%c{i} = arith.constant {i} : index" for i in range(max(m * n, m * k, n * k))]
    for name, count in (("left", m * k), ("right", n * k), ("sums", m * n)):
        lines += [f"%{name}{i} = memref.load %{name}[%c{i}] : {memref(dtype)}" for i in range(count)]
    held = {(i, j): f"%sums{i * n + j}" for i in range(m) for j in range(n)}
    for p in range(k):
        for (i, j), value in held.items():
            held[i, j] = f"%s{i}_{j}_{p}"
            a, b = f"%left{left(i, p)}", f"%right{right(j, p)}"
            if dtype.startswith("f"):
                lines.append(f"%s{i}_{j}_{p} = math.fma {a}, {b}, {value} : {dtype}")
            else:
                lines.append(f"%p{i}_{j}_{p} = arith.muli {a}, {b} : {dtype}")
                lines.append(f"%s{i}_{j}_{p} = arith.addi %p{i}_{j}_{p}, {value} : {dtype}")
    lines += [f"memref.store {v}, %sums[%c{i * n + j}] : {memref(dtype)}" for (i, j), v in held.items()]
    name = f"contract_{dtype}_{m}x{n}x{k}_{left_major}{right_major}"
    parameters: dict[str, str | Array] = {"sums": Array(dtype), "left": Array(dtype), "right": Array(dtype)}
    return define(name, parameters, None, "\n".join(lines))
