"""IR of kernels by hand, right or broken on purpose, and what the interpreter finds wrong with it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilec.semantics.interpreter import Fault, interpret

KERNEL = """
module {{
  func.func @kernel(%x: memref<64xf32>, %y: memref<64xf32>)
      attributes {{tilec.kernel, tilec.blocks = {blocks} : i64, tilec.threads = {threads} : i64,
                  tilec.cluster = {cluster} : i64}} {{
    %t = gpu.thread_id x
    %b = gpu.block_id x
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c16 = arith.constant 16 : index
    %c32 = arith.constant 32 : index
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %other = arith.xori %t, %c1 : index
    %far = arith.xori %t, %c32 : index
    %s = memref.alloc() : memref<64xf32, #gpu.address_space<workgroup>>
{body}
    return
  }}
  func.func @main(%x: memref<64xf32> {{tilec.name = "x"}}, %y: memref<64xf32> {{tilec.name = "y"}})
      attributes {{tilec.inputs = 1 : i64}} {{
    func.call @kernel(%x, %y) : (memref<64xf32>, memref<64xf32>) -> ()
    return
  }}
}}
"""
X = np.arange(64, dtype=np.float32)
SHARED = "memref<64xf32, #gpu.address_space<workgroup>>"
LOAD = "%v = memref.load %x[%t] : memref<64xf32>"
PUT = f"memref.store %v, %s[%t] : {SHARED}"


def run(body: str, threads: int = 64, blocks: int = 1, cluster: int = 1) -> np.ndarray:
    return interpret(KERNEL.format(body=body, threads=threads, blocks=blocks, cluster=cluster), [X])["y"]


def fault(kind: str, body: str, match: str = ".", **options) -> Fault:
    with pytest.raises(Fault, match=match) as error:
        run(body, **options)
    assert error.value.kind == kind, error.value
    return error.value


def filled(template: str, **parts: str) -> str:
    for name, part in parts.items():
        template = template.replace(name.upper(), part)
    return template


def without(text: str, *patterns: str) -> str:
    for pattern in patterns:
        text, count = re.subn(rf"^.*{pattern}.*\n", "", text, flags=re.MULTILINE)
        assert count, pattern
    return text
