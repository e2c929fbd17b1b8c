"""FedAvg: clients train locally, the server averages their models by number of examples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from dataclasses import dataclass

from algorithms import RoundBased, registered


@registered("fedavg")
@dataclass(frozen=True)
class FedAvg(RoundBased):
    """Algorithm 1 of the paper: every hook at its default."""
