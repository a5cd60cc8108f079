"""A tokenizer for TextMate grammars, line by line as editors have it: of the part of the format that the grammar of `.tile` uses.

By hand it was compared with vscode-textmate, the one of VS Code: both give all examples the same scopes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator


def scopes(grammar: dict, text: str) -> Iterator[tuple[int, str, str]]:
    """Position, text and scope of each piece of a text that has a scope of its own."""
    compiled = _rules(grammar["patterns"])
    inside: tuple[re.Pattern[str], dict[str, dict[str, str]], list[Rule]] | None = None
    start = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        at, later = 0, dict[Rule, "re.Match[str] | None"]()  # the next match of each rule in the line
        while at <= len(line):
            rules = compiled if inside is None else inside[2]
            for rule in rules:
                if rule not in later or ((m := later[rule]) is not None and m.start() < at):
                    later[rule] = rule.pattern.search(line, at)
            found = [(m.start(), k, m) for k, rule in enumerate(rules, 1) if (m := later[rule]) is not None]
            if inside is not None and (m := inside[0].search(line, at)):
                found.append((m.start(), 0, m))
            if not found:
                break
            _, k, m = min(found, key=lambda f: f[:2])
            if k == 0:
                assert inside is not None
                yield from _captured(start, m, inside[1])
                inside = None
            else:
                rule = rules[k - 1]
                yield from _captured(start, m, rule.captures)
                if rule.end is not None:
                    inside = rule.end, rule.end_captures, rule.inner
                assert rule.end is not None or m.end() > m.start(), "a rule that matches nothing stops an editor"
            at = m.end()
        start += len(line)


class Rule:
    def __init__(self, rule: dict):
        assert set(rule) <= {"match", "name", "begin", "end", "beginCaptures", "endCaptures", "patterns"}
        self.pattern = re.compile(rule.get("match") or rule["begin"])
        self.captures = {"0": {"name": rule["name"]}} if "name" in rule else rule.get("beginCaptures", {})
        self.end = re.compile(rule["end"]) if "end" in rule else None
        self.end_captures, self.inner = rule.get("endCaptures", {}), _rules(rule.get("patterns", []))


def _rules(patterns: list[dict]) -> list[Rule]:
    return [Rule(rule) for rule in patterns]


def _captured(start: int, found: re.Match[str], captures: dict[str, dict[str, str]]) -> Iterator[tuple[int, str, str]]:
    for group, scope in captures.items():
        if found[int(group)] is not None:
            yield start + found.start(int(group)), found[int(group)], scope["name"]
