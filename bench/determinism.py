"""How this process computes on a GPU, so that a run gives the same numbers whenever it is trained there."""

import os

import torch


def make_deterministic(tf32: bool = False) -> None:
    """Makes torch use kernels that give the same numbers in every run; to be called before this process uses a GPU.

    Args:
        tf32: whether convolutions and matrix products round their inputs to 10 bits of mantissa: some are faster then, and
            numbers are further from those of a CPU (docs/gpu.md).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing reads what has not been written; else each new tensor is written twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32


def uses_tf32(device: torch.device) -> dict[str, bool]:
    """{"tf32": whether it is used} on a GPU, which a record and a checkpoint say; {} elsewhere.

    GPUs of before Ampere have no such type.
    """
    if device.type != "cuda":
        return {}
    return {"tf32": torch.backends.cudnn.allow_tf32 and torch.cuda.get_device_capability(device) >= (8, 0)}
