"""Keyed randomness: every draw has its own generator, named by what it is for.

A stream shared by everything would tie each draw to all earlier ones, so that results would depend on the order of
clients, the engine, or an interruption. A seed derived from (run seed, purpose, round, client) depends on nothing else.
"""

import hashlib

import torch

_MIX = (-4658895280553007687, -7723592293110705685)  # odd multipliers of splitmix64, as signed 64-bit integers


def seed_for(seed: int, purpose: str, *ids: int | str) -> int:
    """A 63-bit seed for one purpose.

    Args:
        seed: the seed of the run.
        purpose: "subset", "init" (which, if not the first), "cohort" (round), "batches", "augment" or "dropout" (round,
            client), "noise" (client), "clusters", "classifier", "privacy" or "inference" (client),
            "choice" (model), "virtual" or "fraction" (class), "directions" (of projections; of no run: seed 0),
            "validation" (client), "search" (of which search, configurations proposed
            before, draws that gave a known one).
        *ids: what the draw may depend on, usually the round and the client.
    """
    key = "/".join(str(part) for part in (seed, purpose, *ids))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def generator_for(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A CPU generator seeded by `seed_for`; draws are made on the host so that every device sees the same numbers."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *ids))


def normal_from_keys(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Standard normal numbers that are a function of integer keys, hence equal on every engine and device.

    A counter-based generator (splitmix64 hash, then Box-Muller) instead of a stateful one: it can be traced by vmap.

    Args:
        keys: [B], int64.
        count: numbers per key.

    Returns:
        [B, count], float32.
    """
    half = (count + 1) // 2
    counter = torch.arange(2 * half, device=keys.device) * -7046029254386353131  # the golden-ratio increment
    uniform = (_mix(keys[:, None] + counter) >> 40 & 0xFFFFFF).float().add(0.5) / 2**24
    radius = torch.sqrt(-2 * torch.log(uniform[:, :half]))
    angle = 2 * torch.pi * uniform[:, half:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1)[:, :count]


def _mix(z: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64; integer products wrap, shifts are made logical by a mask."""
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * _MIX[0]
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * _MIX[1]
    return z ^ (z >> 31 & 0x1FFFFFFFF)
