"""The CNN of PFLlib: https://github.com/TsingZ0/PFLlib, system/flcore/trainmodel/models.py at d832e76, FedAvgCNN."""

from torch import nn

from bench.models import registered_model


@registered_model("pfllib-cnn", title="PFLlib's CNN")
class PfllibCnn(nn.Sequential):
    """Two unpadded 5x5 convolutions of 32 and 64 channels, and a linear layer of 512 (582,026 parameters for 1x28x28)."""

    def __init__(self, input_shape, num_classes):
        channels, side, _ = input_shape
        pixels = ((side - 4) // 2 - 4) // 2
        super().__init__(
            *(nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * pixels**2, 512), nn.ReLU()),
            nn.Linear(512, num_classes),
        )
