"""Files with ImageNet weights: what they become, and what is refused."""

import hashlib
import os
import pickle

import pytest
import torch

from bench.models import pretrained
from bench.models.pretrained import MissingWeights, load
from tests.support.weights import random_weights, write_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    write_weights(folder / "resnet18.pth")
    return folder


def test_features_are_those_of_torchvisions_network_with_the_same_file(folder):
    import torchvision

    module = torchvision.models.resnet18()
    module.load_state_dict(torch.load(folder / "resnet18.pth", weights_only=True))
    module.fc = torch.nn.Identity()
    found, x = load("resnet18.pth", folder), torch.rand(4, 3, 32, 32)
    for _ in range(2):  # nothing is trained, running statistics included
        torch.testing.assert_close(found.features(x), module.eval()(x), rtol=1e-4, atol=1e-4)
    assert found.features(x).std(0).mean() > 0.01, "images differ"
    features = found.features(x.double())
    assert features.shape == (4, pretrained.NUM_FEATURES) and features.dtype == torch.float64
    assert not features.requires_grad


def test_a_name_is_relative_to_the_data_directory_or_a_path(folder):
    digest = hashlib.sha256((folder / "resnet18.pth").read_bytes()).hexdigest()
    for name, data_dir in (("resnet18.pth", folder), (str(folder / "resnet18.pth"), None)):
        found = load(name, data_dir)
        assert found.digest == digest
        assert not {"classifier.weight", "classifier.bias"} & found.params.keys()
        assert found.buffers["stem.norm.num_batches_tracked"] == 7


def test_files_from_before_batches_were_counted_are_read():
    old = {name: leaf for name, leaf in random_weights().items() if "tracked" not in name}
    assert pretrained._fault(old) == ""


def test_a_file_that_is_called_after_its_digest_is_checked(folder):
    content = (folder / "resnet18.pth").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    right, wrong = (folder / f"resnet18-{digits}.pth" for digits in (digest[:8], "0" * 8))
    for path in (right, wrong):
        os.link(folder / "resnet18.pth", path)
    assert load(right.name, folder).digest == digest
    with pytest.raises(
        ValueError, match=rf"says that its sha256 begins with 00000000, but it begins with {digest[:8]}"
    ):
        load(wrong.name, folder)


def test_missing_files_say_what_to_get(folder):
    for name in ("other.pth", "."):  # a folder is none
        with pytest.raises(
            MissingWeights, match=r"No weights in .*: expected .* resnet18-f37072fd.pth; put it there, or"
        ):
            load(name, folder)
    with pytest.raises(
        MissingWeights, match="The weights other.pth lie in the data directory; name it with --data-dir, or"
    ):
        load("other.pth", None)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile",)


def test_files_that_are_no_weights_are_refused_and_run_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Hostile()}, tmp_path / "zipped.pth")
    (tmp_path / "pickled.pth").write_bytes(pickle.dumps(Hostile()))
    (tmp_path / "noise.pth").write_bytes(b"\x80noise" * 50)
    (tmp_path / "empty.pth").touch()
    for name in ("zipped.pth", "pickled.pth", "noise.pth", "empty.pth"):
        with pytest.raises(ValueError, match=rf"The weights in .*{name} cannot be read: expected torchvision's"):
            load(name, tmp_path)
    assert not (tmp_path / "hostile").exists()
    with open(tmp_path / "large.pth", "wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(ValueError, match="have 268,435,457 bytes: expected .*, of 47 million bytes"):
        load("large.pth", tmp_path)
    torch.save([1], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="are of type list, not a mapping of names to tensors: expected torchvision's"):
        load("list.pth", tmp_path)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"conv1.weight": None}, "lack 1 names, such as 'conv1.weight'"),
        ({"layer5.weight": torch.zeros(1), 3: 4}, "have 2 unknown names, such as 'layer5.weight'"),
        ({"fc.weight": torch.zeros(10, 512)}, "have fc.weight of float32 [10, 512], not float32 [1000, 512]"),
        ({"fc.bias": torch.zeros(1000).half()}, "have fc.bias of float16 [1000], not float32 [1000]"),
        ({"fc.bias": 3.0}, "have no plain tensor fc.bias"),
        ({"fc.bias": torch.zeros(1000, device="meta")}, "have no plain tensor fc.bias"),
        ({"fc.bias": torch.zeros(1000).to_sparse()}, "have no plain tensor fc.bias"),
        ({"bn1.weight": torch.full((64,), torch.nan)}, "have numbers in bn1.weight that no trained network has"),
        ({"bn1.running_var": -torch.ones(64)}, "have numbers in bn1.running_var that no trained network has"),
    ],
)
def test_other_names_shapes_types_and_numbers_are_refused(changed, said):
    found = {name: leaf for name, leaf in (random_weights() | changed).items() if leaf is not None}
    assert pretrained._fault(found) == said
