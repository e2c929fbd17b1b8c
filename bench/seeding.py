"""Keyed randomness: every draw has its own generator, keyed by its purpose.

With one shared stream, each draw would depend on all earlier ones, and results on the order of clients, the engine and
interruptions. A seed derived from (run seed, purpose, round, client) depends on nothing else.
"""

import hashlib

import torch

_MIX = (-4658895280553007687, -7723592293110705685)  # odd multipliers of splitmix64, as signed 64-bit integers
_INCREMENT = -7046029254386353131  # the golden-ratio increment of splitmix64


def seed_for(seed: int, purpose: str, *ids: int | str) -> int:
    """A 63-bit seed for one purpose.

    Args:
        seed: the seed of the run.
        purpose: with its ids in brackets: "subset", "init" (index of the initial model, unless it is the first), "cohort"
            (round), "batches", "augment" or "dropout" (round, client), "loss" (round, client: the keys of its
            batches), "noise" (client), "clusters", "classifier", "privacy" or "inference" (client), "choice" (model),
            "virtual" or "fraction" (class), "directions" (of projections; always with seed 0), "validation" or "hold-out"
            (client), "groups", "order" or "selection" (round), "generator-init", "generator" (steps that it was trained
            before; or its number, of several), "discriminator", "discriminators" (both clients: the keys of their batches),
            "discriminator-data" or "discriminator-noise" (client), "coalitions",
            "etf", "projection" (index of the initial model), "head-init", "head-batches", "points", "fedcp",
            "fedcp-noise", "gpfl",
            "search" (name of the search, number of earlier proposals, number of rejected duplicates), "study" (dataset,
            partition, both numbers, name of the hyper-parameter).
        *ids: further parts of the key, usually round and client.
    """
    key = "/".join(str(part) for part in (seed, purpose, *ids))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A CPU generator seeded by `seed_for`; draws on the host are the same for every device."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *ids))


def keys_from(key: torch.Tensor, count: int) -> torch.Tensor:
    """Keys [count] made of one, a scalar; key i depends on nothing but the one and i, so that a row's draws do not depend on
    how many rows there are."""
    return _mix(key + torch.arange(count, device=key.device) * _INCREMENT)


def uniform_from_keys(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers in [0, 1), multiples of 2^-24, as a function of integer keys, hence equal on every engine and device.

    The generator is counter-based (splitmix64 hash), because vmap cannot trace a stateful one.

    Args:
        keys: [B], int64.
        count: numbers per key.

    Returns:
        [B, count], float32.
    """
    counter = torch.arange(count, device=keys.device) * _INCREMENT
    return (_mix(keys[:, None] + counter) >> 40 & 0xFFFFFF).float() / 2**24


def normal_from_keys(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Standard normal numbers [B, count] as a function of integer keys [B], float32: `uniform_from_keys` and Box-Muller."""
    half = (count + 1) // 2
    uniform = uniform_from_keys(keys, 2 * half).add(2**-25)  # never 0, of which there is no logarithm
    radius = torch.sqrt(-2 * torch.log(uniform[:, :half]))
    angle = 2 * torch.pi * uniform[:, half:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1)[:, :count]


def _mix(z: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64; integer products wrap, shifts are made logical by a mask."""
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * _MIX[0]
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * _MIX[1]
    return z ^ (z >> 31 & 0x1FFFFFFFF)
