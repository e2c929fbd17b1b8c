"""What a process that trains on a GPU asks of torch."""

import pytest
import torch

from bench.determinism import make_deterministic, uses_tf32

SET = [
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    before = [getattr(part, name) for part, name in SET]
    yield
    torch.use_deterministic_algorithms(False)
    for (part, name), value in zip(SET, before, strict=True):
        setattr(part, name, value)


@pytest.mark.parametrize("tf32", [False, True])
def test_products_and_convolutions_are_exact_unless_tf32_is_asked_for_which_records_say(tf32, monkeypatch):
    make_deterministic(tf32)
    assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == tf32
    for capability, used in (((9, 0), tf32), ((7, 5), False)):  # Turing has no such type
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, of=capability: of)
        assert uses_tf32(torch.device("cuda")) == {"tf32": used}
    assert uses_tf32(torch.device("cpu")) == {}
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
    assert not torch.utils.deterministic.fill_uninitialized_memory
