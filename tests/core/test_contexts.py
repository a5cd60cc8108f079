"""Contexts of MLIR."""

from threading import Thread

from tilec.core import bindings


def test_texts_that_a_thread_reads_share_a_context(monkeypatch):
    """Some of them, so that what a context has seen goes at last."""
    monkeypatch.setattr(bindings, "READS", 2)
    found = []
    threads = [Thread(target=lambda: found.append([bindings.reading_context() for _ in range(5)])) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    for contexts in found:
        assert [contexts.index(c) for c in contexts] == [0, 0, 2, 2, 4]
    assert len({id(c) for contexts in found for c in contexts}) == 6
