"""ImageNet weights of a ResNet-18 from a file that the user has, in torchvision's layout."""

import hashlib
import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.files import from_home
from bench.models.base import BoundModel, Params
from bench.models.resnet import ResNet18, torchvision_name

CHANNELS = 3  # of the images that such a network reads
_NETWORK = ResNet18((CHANNELS, 224, 224), 1000)
NUM_FEATURES = _NETWORK.feature_dim
_EXPECTED = "expected torchvision's ResNet-18 weights of ImageNet, the V1 set, whose file is resnet18-f37072fd.pth"
_LARGEST = 2**28  # bytes of a file; that of torchvision has 47 million


class MissingWeights(ValueError):
    """There is no file with weights of that name."""


@dataclass(frozen=True)
class Pretrained:
    """A ResNet-18 without its classifier.

    Attributes:
        params, buffers: named as those of `ResNet18`, single precision, on the host.
        digest: sha256 of the file, in hex.
    """

    params: Params
    buffers: Params
    digest: str

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """What the network in evaluation mode makes of images [B, 3, H, W]: [B, 512], on their device and of their type."""
        params, buffers = (
            {name: leaf.to(x.device, x.dtype) for name, leaf in part.items()} for part in (self.params, self.buffers)
        )
        return BoundModel(_NETWORK, buffers).features(params, x)


def load(name: str, data_dir: Path | None) -> Pretrained:
    """The weights in a file.

    Args:
        name: of the file, relative to the data directory, or an absolute path.

    Raises:
        MissingWeights: there is no such file.
        ValueError: it does not hold the weights of a ResNet-18.
    """
    path = from_home(name)
    if not path.is_absolute():
        if data_dir is None:
            raise MissingWeights(
                f"The weights {name} lie in the data directory; name it with --data-dir, or set SKEWBENCH_DATA."
            )
        path = Path(data_dir).absolute() / path
    if not path.is_file():
        raise MissingWeights(f"No weights in {path}: {_EXPECTED}; put it there, or name another file.")
    if (size := path.stat().st_size) > _LARGEST:
        raise ValueError(f"The weights in {path} have {size:,} bytes: {_EXPECTED}, of 47 million bytes.")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    named = re.search(r"-([0-9a-f]{8})\.pth$", path.name)
    if named and not digest.startswith(named[1]):
        raise ValueError(
            f"The name of {path} says that its sha256 begins with {named[1]}, but it begins with {digest[:8]}: the file is "
            "damaged, or another one; get it again."
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever damaged and hostile files raise
        raise ValueError(f"The weights in {path} cannot be read: {_EXPECTED}.") from error
    if fault := _fault(found):
        raise ValueError(f"The weights in {path} {fault}: {_EXPECTED}.")
    params, buffers = (
        {
            ours: found.get(torchvision_name(ours), leaf).detach()
            for ours, leaf in part.items()
            if not ours.startswith("classifier.")
        }
        for part in _own()
    )
    return Pretrained(params, buffers, digest)


def _own() -> tuple[Params, Params]:
    """Params and buffers of the network, with any values."""
    return _NETWORK.init(torch.Generator()), _NETWORK.init_buffers()


def _fault(found: Any) -> str:
    """Why what a file holds are not the weights of the network, as the end of a sentence; "" if they are."""
    params, buffers = _own()
    expected = {torchvision_name(name): leaf for name, leaf in (params | buffers).items()}
    if not isinstance(found, dict):
        return f"are of type {type(found).__name__}, not a mapping of names to tensors"
    if unknown := [name for name in found if name not in expected]:
        return f"have {len(unknown)} unknown names, such as {str(unknown[0])[:80]!r}"
    # Files from before torchvision counted batches have no counters, which nothing reads.
    if lacking := [name for name in expected if name not in found and not name.endswith(".num_batches_tracked")]:
        return f"lack {len(lacking)} names, such as {lacking[0]!r}"
    for name, leaf in found.items():
        wanted = expected[name]
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.device.type != "cpu":
            return f"have no plain tensor {name}"
        if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
            got, other = (f"{str(one.dtype).removeprefix('torch.')} {[*one.shape]}" for one in (leaf, wanted))
            return f"have {name} of {got}, not {other}"
        if not leaf.isfinite().all() or (name.endswith(".running_var") and (leaf < 0).any()):
            return f"have numbers in {name} that no trained network has"
    return ""
