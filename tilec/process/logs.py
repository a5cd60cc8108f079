"""Decisions, cache hits and recompilations, a line each as they happen: `TILEC_LOGS=plan,fusion,cache,torch`, or `all`.

Every topic is a logger of its own: `tilec.plan`, `tilec.fusion`, `tilec.cache` and `tilec.torch`. The variable prints those that it
names on the standard error. A program may give them handlers of its own instead; they report at level INFO.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache

from tilec.process.printable import printable

VARIABLE = "TILEC_LOGS"
TOPICS = {
    "plan": "what each kernel is, its tile and its predicted time, and the rewrites of the program",
    "fusion": "which operations became one kernel, which did not, and why",
    "cache": "what the disk cache had, and what was compiled",
    "torch": "graphs, what PyTorch runs of them and why, and sizes that a partition meets for the first time",
}


def wants(topic: str) -> bool:
    """Whether anybody reads about a topic."""
    _begin(os.environ.get(VARIABLE, ""))
    return logging.getLogger(f"tilec.{topic}").isEnabledFor(logging.INFO)


def log(topic: str, text: str) -> None:
    """Reports a line about a topic, if anybody reads it."""
    if wants(topic):
        logging.getLogger(f"tilec.{topic}").info(printable(text))


@cache
def _begin(chosen: str) -> None:
    """Has the chosen topics printed, and the mistake of an unknown one."""
    names = [name for name in chosen.replace(" ", "").split(",") if name]
    for unknown in (name for name in names if name not in TOPICS and name != "all"):
        print(f"{VARIABLE}: there is no topic `{unknown}`; known: {', '.join(TOPICS)}, all", file=sys.stderr)
    for topic in TOPICS:
        if topic in names or "all" in names:
            logger, handler = logging.getLogger(f"tilec.{topic}"), logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
