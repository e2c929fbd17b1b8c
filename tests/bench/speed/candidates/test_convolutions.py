"""Every way to convolve gives, for each client, what torch's convolution gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bench.speed.candidates import convolutions

ROOT = Path(__file__).parents[4]
CLIENTS, EXAMPLES = 3, 4
# Channels in and out, pixels, side, padding: the layers of the simple CNN, made smaller, and one with padding.
LAYERS = {"first": (3, 6, (10, 8), 5, 0), "second": (6, 16, (7, 7), 5, 0), "padded": (2, 5, (6, 9), 3, 1)}


def differences(name: str, layer: str, shared_weight: bool = False) -> list[float]:
    """Largest differences of the outputs and of the gradients of input, weight and bias, of all clients."""
    channels, wide, pixels, side, padding = LAYERS[layer]
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, EXAMPLES, channels, *pixels, generator=rng)
    weight = torch.randn(CLIENTS, wide, channels, side, side, generator=rng) / (channels * side**2) ** 0.5
    bias = torch.randn(CLIENTS, wide, generator=rng)
    if shared_weight:
        weight = weight[:1].expand_as(weight)

    def loss(x, weight, bias, conv):
        out = conv(x, weight, bias)
        return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), out

    def mine(x, weight, bias):
        return convolutions.conv2d(name, x, weight, bias, padding)

    def reference(x, weight, bias):
        return F.conv2d(x, weight, bias, padding=padding)

    mapped = torch.func.vmap(
        torch.func.grad(lambda *given: loss(*given, mine), (0, 1, 2), has_aux=True),
        in_dims=(0, None if shared_weight else 0, 0),
    )
    gradients, out = mapped(x, weight[0] if shared_weight else weight, bias)
    found = [out, *gradients]
    expected = []
    for client in range(CLIENTS):
        one = torch.func.grad(lambda *given: loss(*given, reference), (0, 1, 2), has_aux=True)
        slopes, out = one(x[client], weight[client], bias[client])
        expected.append([out, *slopes])
    return [
        float((mine - torch.stack(theirs)).abs().max() / torch.stack(theirs).abs().max())
        for mine, theirs in zip(found, zip(*expected, strict=True), strict=True)
    ]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["grouped", "unfolded"])
def test_each_client_gets_the_convolution_and_gradients_of_torch(name, layer):
    assert max(differences(name, layer)) < 1e-5


@pytest.mark.parametrize("name", ["grouped", "unfolded"])
def test_a_weight_that_all_clients_share_has_a_gradient_of_each(name):
    assert max(differences(name, "first", shared_weight=True)) < 1e-5


@pytest.mark.parametrize("name", ["grouped", "unfolded"])
def test_one_client_alone_is_convolved_without_vmap(name):
    x, weight, bias = torch.randn(4, 3, 8, 8), torch.randn(6, 3, 5, 5, requires_grad=True), torch.zeros(6)
    (mine,) = torch.autograd.grad(convolutions.conv2d(name, x, weight, bias).square().sum(), weight)
    (expected,) = torch.autograd.grad(F.conv2d(x, weight, bias).square().sum(), weight)
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.slow
def test_kernels_of_triton_do_so_in_its_interpreter():
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for GPUs, on Linux")
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from tests.bench.speed.candidates.test_convolutions import LAYERS, differences\n"
        "print(max(max(differences('triton', layer)) for layer in LAYERS), differences('triton', 'first', True))"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    worst, *shared = done.stdout.replace("[", "").replace("]", "").replace(",", " ").split()
    assert max(map(float, [worst, *shared])) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_kernels_of_triton_compile_for_a_gpu_of_compute_capability_9(precision, tmp_path, monkeypatch):
    """Without one: the compiler comes with Triton."""
    triton = pytest.importorskip("triton", reason="Triton is not installed; it comes with torch for GPUs, on Linux")
    from triton.backends.compiler import GPUTarget

    from bench.speed.candidates import triton_convolutions as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    forward = {"SIDE": 5, "ROWS": kernels._ROWS, "WIDE": 16, "SUMMED": kernels._SUMMED}
    of_weight = {"SIDE": 5, "WIDE": 16, "PATCH": kernels._PATCH, "PIXELS": kernels._PIXELS}
    for kernel, constants in ((kernels._forward, forward), (kernels._of_weight, of_weight)):
        constants = {**constants, "PRECISION": precision}
        kinds = dict.fromkeys(("x", "weight", "slope", "out"), "*fp32") | dict.fromkeys(constants, "constexpr")
        signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
        values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=values)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert built.asm["cubin"] and ("mma" in built.asm["ptx"]) == (precision == "tf32")
