"""Every test has a fresh PyTorch compiler, seeded numbers, and the back end by its name."""

import logging

import pytest


@pytest.fixture(autouse=True)
def fresh():
    torch = pytest.importorskip("torch")
    from tilec.torch.backend import register

    register()
    logging.getLogger("torch.__trace").propagate = False  # of thousands of lines
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
