"""What `TILEC_LOGS=torch` tells of compiled models."""

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def test_new_sizes_and_what_pytorch_runs_are_reported(caplog):
    function = compiled(lambda x: torch.softmax(x * 2, -1).cumsum(0) + torch.linalg.det(x @ x.T), dynamic=True)
    with caplog.at_level("INFO", logger="tilec.torch"):
        for n in (4, 5, 5):
            function(torch.randn(n, 8))
    lines = [record.message for record in caplog.records if record.name == "tilec.torch"]
    assert "operations" in lines[0] and "_linalg_det" in lines[1]
    assert lines[2:] == ["a partition meets new sizes: [5, 8]", "a partition meets new sizes: [5, 8], []"]
