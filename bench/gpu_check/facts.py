"""What the check runs on."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from bench.gpu_check.session import Session
from bench.provenance import commits_of

_LAUNCHES, _COPIED = 2000, 2**28  # kernels in a row; floats of 1 GiB


def facts(session: Session) -> None:
    """Versions, the card, and what a launch and a byte cost on it."""
    note = session.report.note
    note("commit", commits_of([Path(__file__)], [Path(__file__).parents[1]])["commit"])
    note("python", platform.python_version())
    note("torch", torch.__version__)
    note("cores", os.cpu_count())
    if session.on_gpu:
        _card(session)
    small = torch.zeros(64, device=session.device)
    took = session.seconds(lambda: [small.add_(1) for _ in range(_LAUNCHES)])
    note("microseconds per launch", round(1e6 * took / _LAUNCHES, 2))
    large = torch.zeros(_COPIED if session.on_gpu else 2**20, device=session.device)
    other = torch.empty_like(large)
    took = session.seconds(lambda: other.copy_(large))
    note("GB/s of a copy, read and written", round(2 * large.numel() * 4 / took / 1e9))
    found = session.report.sections["facts"]["found"]
    session.report.summarise(
        f"{found.get('card', 'no GPU')}, torch {torch.__version__}, {found['microseconds per launch']} us per launch"
    )


def _card(session: Session) -> None:
    properties = torch.cuda.get_device_properties(0)
    session.report.note("card", properties.name)
    session.report.note("memory GB", round(properties.total_memory / 1e9, 1))
    session.report.note("CUDA", torch.version.cuda)
    session.report.note("cuDNN", torch.backends.cudnn.version())
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,mig.mode.current", "--format=csv"]
        answer = subprocess.run(query, capture_output=True, text=True)
        session.report.note("nvidia-smi", answer.stdout.splitlines()[1:])
