"""The part of llvmlite that `tilec.runtime.native` uses; other names are untyped."""

from typing import Any

from llvmlite import ir as ir

def __getattr__(name: str) -> Any: ...
