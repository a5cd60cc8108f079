"""What `TILEC_LOGS` prints: lines of each topic, in any process that compiles, and nothing where nobody asks."""

import logging

import numpy as np
import pytest

import tilec
from tilec.process import logs
from tilec.runtime import cache

TEXT = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }"


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """Sets the variable, with an empty cache."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    logs._begin.cache_clear()
    yield lambda text: monkeypatch.setenv(logs.VARIABLE, text)
    logs._begin.cache_clear()
    for topic in logs.TOPICS:
        logger = logging.getLogger(f"tilec.{topic}")
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def called() -> None:
    tilec.compile(TEXT, target="cpu")(np.ones((4, 5), np.float32))


def test_decisions_and_the_cache(chosen, capfd):
    chosen("plan, fusion,cache")
    called()
    first = capfd.readouterr().err.splitlines()
    assert any(line.startswith("tilec.plan: kernel f_y of ") and "predicted, bound by" in line for line in first)
    assert any(line.startswith("tilec.fusion: ") and " fused " in line for line in first)
    assert [line for line in first if line.startswith("tilec.cache: ")] == [
        "tilec.cache: f for cpu with f32[4, 5] is compiled", "tilec.cache: machine code for the CPU of f_y is compiled",
    ]  # fmt: skip


def test_a_topic_alone(chosen, capfd):
    chosen("cache")
    called()
    called()
    found = capfd.readouterr().err.splitlines()
    assert {line.split(":")[0] for line in found} == {"tilec.cache"}
    assert [line.endswith("is in the disk cache") for line in found] == [False, False, True, True]


def test_nothing_is_printed_unasked(chosen, capfd):
    called()
    assert capfd.readouterr().err == ""
    assert not any(map(logs.wants, logs.TOPICS))


def test_an_unknown_topic_is_a_mistake(chosen, capfd):
    chosen("tourch")
    called()
    assert capfd.readouterr().err == "TILEC_LOGS: there is no topic `tourch`; known: plan, fusion, cache, torch, all\n"


def test_a_handler_of_the_programs_own(chosen, caplog):
    with caplog.at_level(logging.INFO, logger="tilec.fusion"):
        called()
    assert any("fused" in record.message for record in caplog.records)
    assert {record.name for record in caplog.records} == {"tilec.fusion"}
