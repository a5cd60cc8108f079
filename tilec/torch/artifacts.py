"""tilec's part of `torch.compiler.save_cache_artifacts()`: the entries of tilec's disk cache that this process found or made.

An artifact has an entry's properties as a line of JSON, with the sizes of its files, and then the files.
"""

from __future__ import annotations

import json
from typing import Any

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from tilec.runtime import cache

TYPE = "tilec"


class Entry(CacheArtifact):
    """An entry of the disk cache."""

    @staticmethod
    def type() -> str:
        return TYPE

    def populate_cache(self) -> None:
        """Writes the entry into this machine's cache."""
        properties, files = _unpacked(self.content)
        cache.save(self.key, properties, files)


def _record(key: str, properties: dict[str, Any], files: dict[str, bytes]) -> None:
    CacheArtifactManager.record_artifact(TYPE, key, _packed(properties, files))


def _packed(properties: dict[str, Any], files: dict[str, bytes]) -> bytes:
    head = {"properties": properties, "files": {name: len(data) for name, data in files.items()}}
    return json.dumps(head).encode() + b"\n" + b"".join(files.values())


def _unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    line, _, rest = content.partition(b"\n")
    head, files = json.loads(line), {}
    for name, size in head["files"].items():
        files[name], rest = rest[:size], rest[size:]
    return head["properties"], files


def register() -> None:
    """Has entries recorded from now on, and artifacts of this type understood."""
    if TYPE not in CacheArtifactFactory._artifact_types:
        CacheArtifactFactory.register(Entry)
    if _record not in cache.watchers:
        cache.watchers.append(_record)
