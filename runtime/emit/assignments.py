"""Assignments that happen at once, such as those of a loop's states at the end of its body."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

MOST = 30
"""Values of one statement. CPython builds longer tuples from lists, by an instruction that Numba does not read."""
_NAME = r"(?<![\w.])[^\W\d]\w*"


def assignments(pairs: Sequence[tuple[str, str]], temporary: Callable[[str], str]) -> list[str]:
    """Statements that give each variable the value of its text. Texts name what the variables hold before. `temporary` makes a new
    name from letters.

    Up to 30 pairs are one statement. More are several: a variable is assigned when no later text names it. Where variables wait for
    each other, the old value of one is kept in a temporary."""
    if len(pairs) <= MOST:
        return [_statement(pairs)] if pairs else []
    texts, kept, order = dict(pairs), list[tuple[str, str]](), list[str]()
    read = {name: (set(re.findall(_NAME, text)) & texts.keys()) - {name} for name, text in pairs}
    readers: dict[str, set[str]] = {name: set() for name in texts}
    for name, names in read.items():
        for other in names:
            readers[other].add(name)
    waiting = dict.fromkeys(texts)
    ready = deque(name for name in texts if not readers[name])
    while waiting:
        if not ready:
            ready.append(first := next(iter(waiting)))
            kept.append((temporary("before"), first))
            for name in readers[first]:
                texts[name] = re.sub(rf"(?<![\w.]){first}\b", kept[-1][0], texts[name])
                read[name].discard(first)
        order.append(name := ready.popleft())
        del waiting[name]
        for other in read[name]:
            readers[other].discard(name)
            if not readers[other]:
                ready.append(other)
    groups = kept, [(name, texts[name]) for name in order]
    return [_statement(group[n : n + MOST]) for group in groups for n in range(0, len(group), MOST)]


def _statement(pairs: Sequence[tuple[str, str]]) -> str:
    return f"{', '.join(name for name, _ in pairs)} = {', '.join(text for _, text in pairs)}"
