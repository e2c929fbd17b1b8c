"""Keyed randomness."""

import torch

from bench.seeding import generator_for, keys_from, normal_from_keys, seed_for, uniform_from_keys


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


def test_uniform_numbers_from_keys_are_uniform_and_repeatable():
    u = uniform_from_keys(torch.arange(400) * 7919, 501)
    assert u.shape == (400, 501) and 0 <= u.min() and u.max() < 1
    assert torch.equal(u[3, :7], uniform_from_keys(torch.tensor([3 * 7919]), 7)[0])
    shares = torch.histc(u, 20, 0, 1) / u.numel()
    assert (shares - 0.05).abs().max() < 0.0025  # five standard errors
    assert abs(torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]) < 0.01


def test_keys_made_of_one_are_all_different_and_do_not_depend_on_their_number():
    keys = torch.cat([keys_from(torch.tensor(key), 100) for key in (0, 1, 2**63 - 1)])
    assert len(set(keys.tolist())) == 300
    assert torch.equal(keys[:30], keys_from(torch.tensor(0), 30))
    assert abs(torch.corrcoef(uniform_from_keys(keys, 500)).fill_diagonal_(0)).max() < 0.25


def test_normal_numbers_from_keys_are_stable():
    """Partitions with noise and calibration depend on them."""
    expected = torch.tensor([[0.0888984, 1.4679959, 0.3046794], [0.1986121, -2.0976117, 1.8628381]])
    torch.testing.assert_close(normal_from_keys(torch.tensor([12345, -678]), 3), expected, rtol=0, atol=1e-6)
