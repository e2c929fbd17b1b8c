"""The pretended GPU refuses what CUDA refuses, knows what the host waits for, and computes what the CPU computes."""

import numpy as np
import pytest
import torch

from algorithms.shared import tree
from bench.contract import pretended_gpu
from bench.contract.pretended_gpu import NAME
from tests.support.pretended import require_pretended_gpu

require_pretended_gpu()
HOST = torch.arange(6.0).view(2, 3)


def on_device() -> torch.Tensor:
    return HOST.to(NAME)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda x: x + HOST, "same device"),
        (lambda x: HOST.clone().add_(x), "same device"),
        (lambda x: torch.cat([x, HOST]), "same device"),
        (lambda x: torch.stack([x.sum(), torch.tensor(1.0)]), "same device"),
        (lambda x: x @ HOST.T, "same device"),
        (lambda x: HOST[x[:, 0].long()], "same device"),
        (lambda x: torch.func.vmap(lambda row, other: row * other)(x, HOST), "same device"),
        (lambda x: torch.rand(3, device=NAME, generator=torch.Generator()), "generator"),
        (lambda x: torch.empty_like(x).normal_(generator=torch.Generator()), "generator"),
        (lambda x: torch.randperm(3, device=NAME, generator=torch.Generator()), "generator"),
        (lambda x: x.numpy(), "numpy"),
        (lambda x: np.asarray(x), "numpy"),
    ],
)
def test_what_cuda_refuses_is_refused(operation, message):
    with pretended_gpu.session():
        x = on_device()
        with pytest.raises((RuntimeError, TypeError), match=message):
            operation(x)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.where(x > 1, x, torch.tensor(0.0)),
        lambda x: x[:, 1],
        lambda x: x.sum().add_(x[0, 1]),
        lambda x: torch.func.grad(lambda y: (y**2).sum())(x),
        lambda x: torch.func.vmap(lambda row: row.softmax(0))(x),
        lambda x: x.clone().unsqueeze_(0).transpose_(1, 2) * x.T,
        lambda x: torch.matmul(x, torch.ones(3, 1, device=x.device)[:, 0])[:, None] + x,
        lambda x: x.clone().masked_fill_(x > 2, 0.0),
        lambda x: torch.zeros(2, 3, device=x.device).copy_(x),
        lambda x: torch.rand(3, generator=torch.Generator().manual_seed(0)).to(x.device).sum() + x,
    ],
)
def test_results_are_those_of_the_cpu_and_stay_on_the_device(operation):
    with pretended_gpu.session():
        found = operation(on_device())
        expected = operation(HOST)
        assert (found.device.type, found.shape) == (NAME, expected.shape)
        assert torch.equal(pretended_gpu.on_host({"found": found})["found"], expected)


@pytest.mark.parametrize(
    ("operation", "kinds"),
    [
        (lambda x: x.sum().item(), ["wait"]),
        (lambda x: float(x.sum()), ["wait"]),
        (lambda x: bool(x.sum() > 1), ["wait"]),
        (lambda x: x.tolist(), ["to host"]),
        (lambda x: x.cpu(), ["to host"]),
        (lambda x: HOST.clone().copy_(x), ["to host"]),
        (lambda x: HOST.to(x.device), ["to device"]),
        (lambda x: torch.tensor([1.0], device=x.device), ["to device"]),
        (lambda x: x[torch.tensor([1, 0])], ["to device"]),
        (lambda x: x[[1, 0]], ["to device"]),
        (lambda x: x.nonzero(), ["wait"]),
        (lambda x: x[x > 1], ["wait"]),
        (lambda x: torch.equal(x, x), ["wait"]),
        (lambda x: x.long().flatten().bincount(), ["wait"]),
        (lambda x: x[x[:, 0].long() * 0], []),
        (lambda x: torch.where(x > 1, x, 0), []),
        (lambda x: x.clone(), []),
    ],
)
def test_the_host_waits_for_what_it_reads_copies_or_must_know_the_size_of(operation, kinds):
    with pretended_gpu.session() as gpu:
        x = on_device()
        gpu.events.clear()
        operation(x)
    assert [event.kind for event in gpu.events] == kinds


def test_events_have_their_bytes_and_the_line_of_the_project():
    with pretended_gpu.session() as gpu:
        tree.all_finite({"w": on_device()})
    copied, read = gpu.events
    assert (copied.num_bytes, copied.site) == (6 * 4, ""), "a test is no part of the project"
    assert read.site.startswith("algorithms/shared/tree.py:")


def test_kernels_and_their_bytes_by_hand():
    with pretended_gpu.session() as gpu:
        x = on_device()
        gpu.launches.clear()
        gpu.moved = 0
        torch._foreach_add([x, x], 1.0)[0].unsqueeze_(0)
        (x.T.reshape(2, 3)[0] + x.view(3, 2)[:, 0]).sum()
    assert gpu.launches == {"_foreach_add": 1, "clone": 1, "add": 1, "sum": 1}, "views cost none"
    assert gpu.moved == 4 * ((12 + 12) + (6 + 6) + (3 + 3 + 3) + (3 + 1))


def test_a_tensor_is_of_no_use_outside_of_a_session():
    with pretended_gpu.session():
        x = on_device()
    with pytest.raises(RuntimeError, match="outside"):
        x + 1
