"""GPUs of a machine: whether they can be used, and how many trials each gets."""

import shutil
import subprocess

NO_GPU = "A run was given a GPU there, but torch sees none"  # begins the sentence on every GPU that is lost


class HeldGpu:
    """An actor of Ray that has a GPU for itself."""

    def works(self) -> bool:
        """Whether torch can use it."""
        import torch

        try:
            return bool(torch.ones(1, device="cuda").item())
        except (RuntimeError, AssertionError):  # the latter if torch was built without CUDA
            return False


def trials_on_each(trials: int, gpus: int, least: int = 1) -> int:
    """How many of some trials a GPU gets, `least` or more: rounded up, or down where another GPU would be left without any."""
    most = max(-(-trials // gpus), least)
    leaves_one_idle = most * (gpus - 1) >= trials
    return max(1, most - leaves_one_idle)


def mps_runs() -> bool:
    """Whether NVIDIA's MPS runs on this machine; programs that use a GPU find it by themselves."""
    if not (control := shutil.which("nvidia-cuda-mps-control")):
        return False
    try:
        asked = subprocess.run([control], input=b"get_server_list\n", capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def sees_gpu() -> bool:
    """Whether torch sees a GPU in this process."""
    import torch

    return torch.cuda.is_available()
