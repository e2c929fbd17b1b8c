"""Keyed randomness."""

import torch

from bench.seeding import generator_for, normal_from_keys, seed_for


def test_a_seed_depends_on_everything_that_names_it():
    seeds = {
        seed_for(s, purpose, *ids)
        for s in (0, 1)
        for purpose in ("batches", "augment")
        for ids in ((1, 2), (2, 1), (12,))
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_stable():
    """Stored results depend on these values: a change needs new versions of everything that draws."""
    assert seed_for(0, "init") == 3912388711783151084
    assert torch.randperm(5, generator=generator_for(0, "batches", 0, 0)).tolist() == [1, 2, 3, 4, 0]


def test_normal_numbers_from_keys_are_normal_and_repeatable():
    keys = torch.arange(400) * 7919
    z = normal_from_keys(keys, 501)
    assert z.shape == (400, 501)
    assert torch.equal(z[3], normal_from_keys(keys[3:4], 501)[0])
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01
    assert abs((z**4).mean() - 3) < 0.1  # the fourth moment of a standard normal
    correlations = torch.corrcoef(z)
    correlations.fill_diagonal_(0)
    assert correlations.abs().max() < 0.25  # 79,800 pairs of 501 numbers each: 5.5 standard errors
    assert abs(torch.corrcoef(torch.stack([z[:, :-1].flatten(), z[:, 1:].flatten()]))[0, 1]) < 0.01


def test_normal_numbers_can_be_traced_by_vmap():
    keys = torch.arange(6).view(2, 3)
    together = torch.func.vmap(lambda k: normal_from_keys(k, 4))(keys)
    assert torch.equal(together[1], normal_from_keys(keys[1], 4))
