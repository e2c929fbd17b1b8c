"""Memory and GPU use of this process, and the names of its device and its processor."""

import contextlib
import ctypes
import functools
import platform
import resource
import shutil
import statistics
import subprocess
import threading
import time
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Lets this process keep the memory of freed tensors for the next ones, until `give_back_memory`.

    By default glibc gives it back to the system: blocks of 32 MiB and more, and more than 64 MiB at the end of the heap. The
    system fills the pages of the next tensor with zeros, which takes up to half of the time of a round on the CPU. Without
    glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def give_back_memory() -> None:
    """Gives freed memory back to the system. Without glibc nothing changes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory(device: torch.device) -> None:
    """Restarts the measurement of `peak_memory_mb`, in a process that has trained other runs before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # only on Linux; elsewhere the peak is that of the whole process lifetime
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb(device: torch.device) -> float:
    """Largest memory since `reset_peak_memory`: of the allocator on a GPU, else of the process. Megabytes of 10^6 bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def unique_memory_mb() -> float | None:
    """Current memory that this process does not share with others, freed memory that it keeps included, in MB of 10^6 bytes;
    None without /proc."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


def device_name(device: torch.device) -> str:
    """The model of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@functools.cache
def processor_name() -> str:
    """The processor of this machine, as far as numbers depend on it: "Intel(R) Xeon(R) Processor, family 6, model 143, AVX512".
    Virtual machines call different ones the same; the last word says which instructions torch uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    first: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        first.setdefault(key.strip(), value.strip())
    name = first.get("model name") or platform.processor() or platform.machine()
    kind = [f"{word} {first[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in first]
    return ", ".join([name, *kind, torch.backends.cpu.get_cpu_capability()])


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU, or a library on it, has no memory left, or had none in what led to an error."""
    if error is None:
        return False
    of_libraries = [
        f"{name}_STATUS_{what}" for name in ("CUBLAS", "CUDNN") for what in ("ALLOC_FAILED", "NOT_INITIALIZED")
    ]
    phrases = ("CUDA error: out of memory", *of_libraries)
    tells = isinstance(error, RuntimeError) and any(text in str(error) for text in phrases)
    return isinstance(error, torch.OutOfMemoryError) or tells or is_out_of_memory(error.__context__)


class GpuUse:
    """Context manager that samples GPU utilisation by `nvidia-smi`; without a GPU there are no samples."""

    def __init__(self):
        self._samples: list[tuple[float, float]] = []
        self._sampler = None

    def __enter__(self) -> "GpuUse":
        if torch.cuda.is_available() and shutil.which("nvidia-smi"):
            command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=100"]
            command.append(f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}")
            self._sampler = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._sampler:
            self._sampler.kill()
            self._sampler.wait()
            self._reader.join()
            self._sampler.stdout.close()

    def between(self, begin: float, end: float) -> float | None:
        """Mean utilisation, in [0, 1], between two times of `time.perf_counter`; None without a sample."""
        shares = [share for moment, share in list(self._samples) if begin <= moment <= end]
        return statistics.mean(shares) if shares else None

    def _read(self) -> None:
        for line in self._sampler.stdout:
            if line.strip().isdecimal():  # some devices answer [N/A]
                self._samples.append((time.perf_counter(), int(line) / 100))
