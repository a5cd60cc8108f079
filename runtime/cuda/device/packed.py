"""Two 16-bit floats in one 32-bit register: rows stay as they are stored, and are widened where they are used."""

from __future__ import annotations

from functools import partial

from tilec.runtime.cuda.device.define import Array, DeviceFunction, asm, define, extract, indices, memref, write

# The word with element `at` in it, its index, and by how many bits it is shifted there.
_WORD = f"""%one = arith.constant 1 : i64
      %four = arith.constant 4 : i64
      %place = arith.shrui %at, %one : i64
      %odd = arith.andi %at, %one : i64
      %shift64 = arith.shli %odd, %four : i64
      %shift = arith.trunci %shift64 : i64 to i32
      %index = arith.index_cast %place : i64 to index
      %word = memref.load %words[%index] : {memref("u32")}"""


def unpack(dtype: str) -> DeviceFunction:
    """`unpack_bf16(words, at)`: element `at` of an array of words with two elements each, as float32.

    A shift or a mask (bf16), or one conversion (f16), once the place is a known number.
    """
    widen = {
        "bf16": "%c16 = arith.constant 16 : i32\n%wide = arith.shli %half, %c16 : i32\n%result = arith.bitcast %wide : i32 to f32",
        "f16": "%low = arith.trunci %half : i32 to i16\n%h = arith.bitcast %low : i16 to f16\n%result = arith.extf %h : f16 to f32",
    }[dtype]
    body = f"""{_WORD}
      %half = arith.shrui %word, %shift : i32
      {widen}"""
    return define(f"unpack_{dtype}", {"words": Array("u32"), "at": "i64"}, "f32", body)


def put(dtype: str) -> DeviceFunction:
    """`put_bf16(words, at, value)`: the value as element `at` of an array of words with two elements each."""
    narrow = {
        "bf16": f"%bits = {asm('cvt.rn.bf16.f32 $0, $1;', 'h', [('f', '%value')], pure=True)}",
        "f16": "%h = arith.truncf %value : f32 to f16\n%bits = arith.bitcast %h : f16 to i16",
    }[dtype]
    body = f"""{_WORD}
      {narrow}
      %wide = arith.extui %bits : i16 to i32
      %mask = arith.constant 65535 : i32
      %all = arith.constant -1 : i32
      %new = arith.shli %wide, %shift : i32
      %old = arith.shli %mask, %shift : i32
      %others = arith.xori %old, %all : i32
      %kept = arith.andi %word, %others : i32
      %both = arith.ori %kept, %new : i32
      memref.store %both, %words[%index] : {memref("u32")}"""
    return define(f"put_{dtype}", {"words": Array("u32"), "at": "i64", "value": "f32"}, None, body)


def load_words(count: int) -> DeviceFunction:
    """`load_words_4(words, at, address)`: 4, 8 or 16 bytes of shared memory into an array of words.

    In PTX, because LLVM would load each half by itself.
    """
    vector, targets = f".v{count}" if count > 1 else "", ", ".join(f"${n}" for n in range(count))
    text = f"ld.shared{vector}.b32 " + (f"{{{targets}}}" if count > 1 else targets) + f", [${count}];"
    body = f"""{indices("words", "at", count)}
      %loaded = {asm(text, "r" * count, [("l", "%address")])}
      {extract("%loaded", "r" * count, "word")}
      {write("words", "u32", [f"%word{n}" for n in range(count)])}"""
    return define(f"load_words_{count}", {"words": Array("u32"), "at": "i64", "address": "i64"}, None, body)


PACKED = {
    **{f"unpack_{dtype}": partial(unpack, dtype) for dtype in ("bf16", "f16")},
    **{f"put_{dtype}": partial(put, dtype) for dtype in ("bf16", "f16")},
    **{f"load_words_{count}": partial(load_words, count) for count in (1, 2, 4)},
}
