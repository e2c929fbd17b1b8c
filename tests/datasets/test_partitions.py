"""Partitions equal the reference ones, and every kind deals each example once."""

import hashlib
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.partitions import dirichlet_equal, known_kinds, parse, redrawn

CLASS_COUNTS = {
    "cifar10": [5000] * 10,
    "svhn": [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
    "fmnist": [6000] * 10,
    "cifar100": [500] * 100,
    "tinyimagenet": [500] * 200,
}

# Section 16 of protocols/fedconcat.md. Per seed 0 | 1 | 2: client-0 size/smallest/largest/draws, then the first
# 12 hex digits of the SHA-256 of the clients x classes count matrix as little-endian 64-bit integers.
# ruff: noqa: E501 (one line of the digest is one line here)
GOLDEN = """
cifar10 40 label-2 | 1250/955/1547/1 cdfa46a6ac37 | 1417/870/1625/1 680d6bf51dbd | 1625/954/1714/1 4ae825bec2aa
cifar10 40 label-3 | 1515/1002/1515/1 d27fb0d96be7 | 1465/1003/1496/1 d10d6426c4f2 | 1528/947/1696/1 c65a09689676
cifar10 40 dir-0.1 | 1503/107/3759/1 1dbb2b58e4e1 | 3134/25/3134/2 de1482b2c2ae | 749/12/3057/1 3f7070dff608
cifar10 40 dir-0.5 | 1805/374/2604/1 cec33ea5234a | 1461/452/2442/1 ad8ddb9cb966 | 589/372/2089/1 6ebfa5cc92eb
cifar10 200 label-2 | 281/219/287/1 19a55d868bdb | 244/210/294/1 c1f4319f66c3 | 239/217/286/1 8d1aeac9e5d9
cifar10 200 label-3 | 251/230/271/1 afb041f97061 | 268/230/273/1 f345a25e4456 | 254/225/277/1 2126c8e16d1f
cifar10 200 dir-0.1 | 413/11/1393/52 591599b75bac | 19/10/919/1166 3012f5d8b1cd | 194/10/1620/471 a69aed1bc933
cifar10 200 dir-0.5 | 252/65/618/1 2616f962bbc4 | 306/61/510/1 73ef1d54d97d | 157/61/530/1 91ac0b74b54d
svhn 40 label-2 | 1335/1040/3492/1 724b3832859d | 2530/973/3850/1 ca3551a9d395 | 3392/1078/3571/1 966f443610f6
svhn 40 label-3 | 1754/1145/2751/1 395931cdda9c | 2129/1092/3069/1 21576c046164 | 2907/1043/3442/1 d81f40cad8d1
svhn 40 dir-0.1 | 1889/27/7865/1 a38429d71b9a | 2178/136/4895/1 a61f9540cdae | 2915/75/4498/1 cac3315d704f
svhn 40 dir-0.5 | 1866/652/3827/1 5a309ad2a971 | 1848/755/3334/1 c19269c2f580 | 2315/813/2839/1 e9b0d4eff280
svhn 200 label-2 | 301/221/587/1 9d2cb051a405 | 399/210/702/1 880324e8dbf5 | 471/217/608/1 978a0eda6b51
svhn 200 label-3 | 302/243/508/1 d7b60ab2789b | 368/236/541/1 deeed2e89b17 | 449/231/607/1 062872a8a41b
svhn 200 dir-0.1 | 825/10/1789/117 0b84d0d09060 | 925/10/1746/89 3893ef526355 | 60/10/2276/62 5c738bc6a707
svhn 200 dir-0.5 | 308/89/785/1 02d2eb7ffef0 | 242/88/817/1 2034de93daf8 | 373/81/905/1 5feb6ade3b67
fmnist 40 label-2 | 1500/1146/1857/1 62474db79727 | 1700/1045/1950/1 e254742fde02 | 1950/1145/2057/1 e7b0965f4882
fmnist 40 label-3 | 1817/1200/1817/1 04939d9c2501 | 1758/1204/1795/1 d02d2f6c5f00 | 1833/1137/2036/1 4357cd4c4cea
fmnist 40 dir-0.1 | 2547/76/5631/1 0c9686c7c321 | 1089/36/5758/1 092ba27d301e | 259/16/4769/1 c7fbb2548886
fmnist 40 dir-0.5 | 1623/460/2332/1 25cabc8e7741 | 939/391/2453/1 7d3a9cf2216f | 1018/412/2706/1 1bbfdeaee661
fmnist 200 label-2 | 336/263/344/1 6e213944e697 | 292/252/354/1 da7c544a2f6e | 286/260/344/1 a09f28abe919
fmnist 200 label-3 | 301/274/324/1 2891efac1b06 | 320/276/328/1 f4c9dc8b68d5 | 305/271/332/1 2dc70217e557
fmnist 200 dir-0.1 | 270/14/1691/39 d0f91485959d | 48/11/1491/119 1ecc62887ff8 | 11/11/1465/340 5a7ac414bda5
fmnist 200 dir-0.5 | 311/71/553/1 8b30aa7bedd1 | 201/74/655/1 7d43efe3754b | 300/40/844/1 71cc19e373b4
cifar100 200 label-2 | 292/133/417/1 cc747aa89118 | 267/128/375/1 7dfcf36a8b42 | 209/113/417/1 557a3dde00d9
cifar100 200 label-3 | 281/145/475/1 e57e80fe8740 | 240/174/406/1 9e4f72bf70bd | 247/145/395/1 24573b9fc526
cifar100 200 dir-0.1 | 252/123/451/1 fb9f225830b5 | 261/122/413/1 8e69fda3db6d | 262/112/429/1 c30dc1d5390d
cifar100 200 dir-0.5 | 251/175/285/1 b769194ac424 | 212/195/297/1 43a2bb35fd59 | 253/193/295/1 b2ed80fc33a2
tinyimagenet 200 label-2 | 417/200/750/1 c9b7c3646839 | 417/225/750/1 49c409e178bb | 417/225/750/1 b3b6e9e65d54
tinyimagenet 200 label-3 | 501/255/1000/1 e5b497b34a7f | 392/254/916/1 dcbcbb80fd71 | 542/263/917/1 558da975d8d1
tinyimagenet 200 dir-0.1 | 506/315/643/1 342cd95cce27 | 507/272/706/1 3f5c8aa4d078 | 465/281/657/1 757436b2b3bc
tinyimagenet 200 dir-0.5 | 506/405/544/1 0770159df350 | 419/385/571/1 02e9ac87056c | 462/391/558/1 9e6ecd7ae71e
"""

# Section 3.6: NumPy seeded with 2020 inside the Dirichlet branch, whatever the run's seed.
GOLDEN_2020 = """
cifar10 dir-0.1 2874/48/3555/1 ed121c91e69a
cifar10 dir-0.5 2879/477/2879/1 f6b9f14d4c76
svhn dir-0.1 1547/59/5877/1 d64a5fca0aba
svhn dir-0.5 1701/445/2900/1 1ac988af8b7b
fmnist dir-0.1 2437/62/3973/1 0c90542b1a5e
fmnist dir-0.5 1652/530/2240/1 e2d65b3ff9e4
"""

# Over labels i mod 10, 40 clients, seeds 0 | 1 | 2: SHA-256 of all index lists, which sees the order as well.
GOLDEN_INDICES = {
    "label-2": ("8c7f6c47931c", "731e240e4781", "92348abbcf63"),
    "label-3": ("248ca85ad872", "f6f5dd827532", "fbbacd508041"),
    "dir-0.1": ("5eb616a82638", "d80e34c08c8a", "1e0377dc9089"),
    "dir-0.5": ("4da9a22bc6ed", "a0c730ee832e", "fd81d026e505"),
}


def golden_cells():
    for line in GOLDEN.strip().splitlines():
        cell, values = line.split(" | ", 1)
        dataset, num_clients, name = cell.split()
        for seed, value in enumerate(values.split(" | ")):
            yield pytest.param(
                dataset, int(num_clients), name, seed, value, id=f"{dataset}-{num_clients}-{name}-{seed}"
            )


def labels_of(dataset):
    """Labels with the class counts of a dataset; their order does not change the counts of a partition."""
    return np.repeat(np.arange(len(CLASS_COUNTS[dataset])), CLASS_COUNTS[dataset])


def counts_of(indices, labels, num_classes):
    return np.stack([np.bincount(labels[client], minlength=num_classes) for client in indices])


def checksum(integers):
    return hashlib.sha256(np.ascontiguousarray(integers, dtype="<i8").tobytes()).hexdigest()[:12]


def summary(drawn, labels, num_classes):
    sizes = [len(indices) for indices in drawn.indices]
    digits = checksum(counts_of(drawn.indices, labels, num_classes))
    return f"{sizes[0]}/{min(sizes)}/{max(sizes)}/{drawn.num_draws} {digits}"


def test_every_golden_cell_is_listed():
    assert len(list(golden_cells())) == 3 * (3 * 8 + 2 * 4)


@pytest.mark.slow_but_first
@pytest.mark.parametrize(("dataset", "num_clients", "name", "seed", "expected"), list(golden_cells()))
def test_counts_equal_the_golden_values(dataset, num_clients, name, seed, expected):
    labels, num_classes = labels_of(dataset), len(CLASS_COUNTS[dataset])
    assert summary(parse(name).draw(labels, num_clients, num_classes, seed), labels, num_classes) == expected


@pytest.mark.parametrize("line", GOLDEN_2020.strip().splitlines())
@pytest.mark.parametrize("seed", [0, 2])
def test_the_seed_override_gives_the_legacy_partition_for_every_seed(line, seed):
    dataset, name, expected = line.split(" ", 2)
    labels = labels_of(dataset)
    drawn = parse(name).draw(labels, 40, 10, seed, dirichlet_seed_override=2020)
    assert summary(drawn, labels, 10) == expected


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", GOLDEN_INDICES)
def test_indices_equal_the_reference_in_order(name, seed):
    indices = parse(name).split(np.arange(50_000) % 10, 40, 10, seed)
    assert checksum(np.concatenate(indices)) == GOLDEN_INDICES[name][seed]
    assert all(client.dtype == np.int64 for client in indices)


def test_label_2_with_seed_1_is_the_example_of_the_paper():
    labels = labels_of("cifar10")
    counts = counts_of(parse("label-2").split(labels, 40, 10, 1), labels, 10)
    assert (counts > 0).sum(axis=0).tolist() == [12, 8, 5, 11, 7, 5, 9, 10, 7, 6]
    # 5,000 images over 12 owners: the first 5000 % 12 = 8 get 417; over 5 owners: 1,000 each.
    # Over 8 owners: 625 each; over 6: the first 5000 % 6 = 2 get 834.
    assert {label: counts[0, label] for label in np.flatnonzero(counts[0])} == {0: 417, 2: 1000}
    assert {label: counts[1, label] for label in np.flatnonzero(counts[1])} == {1: 625, 9: 834}


def test_dir_half_with_seed_0_has_the_published_first_and_last_client():
    labels = labels_of("cifar10")
    counts = counts_of(parse("dir-0.5").split(labels, 40, 10, 0), labels, 10)
    assert counts[0].tolist() == [166, 475, 267, 897, 0, 0, 0, 0, 0, 0]
    assert counts[39].tolist() == [146, 9, 214, 81, 1, 52, 190, 5, 87, 1]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, [{0, 6}, {1, 6}, {2, 0}, {3, 4}, {4, 8}, {5, 7}, {6, 4}, {7, 5}]),
        (1, [{0, 2}, {1, 9}, {2, 1}, {3, 4}, {4, 1}, {5, 7}, {6, 7}, {7, 6}]),
        (2, [{0, 1}, {1, 5}, {2, 4}, {3, 4}, {4, 9}, {5, 3}, {6, 9}, {7, 0}]),
    ],
)
def test_first_labels_of_label_2(seed, expected):
    labels = labels_of("cifar10")
    indices = parse("label-2").split(labels, 40, 10, seed)
    assert [set(labels[client].tolist()) for client in indices[:8]] == expected


def test_the_seed_override_touches_only_dirichlet():
    labels = np.arange(2000) % 10
    for name in ("label-2", "iid", "quantity-0.5", "noise-0.1"):
        plain = parse(name).split(labels, 20, 10, 1)
        overridden = parse(name).split(labels, 20, 10, 1, dirichlet_seed_override=2020)
        assert all(np.array_equal(a, b) for a, b in zip(plain, overridden, strict=True))


def test_iid_is_numpys_legacy_permutation_in_nearly_equal_parts():
    indices = parse("iid").split(np.zeros(103, dtype=int), 10, 1, 5)
    assert [len(client) for client in indices] == [11] * 3 + [10] * 7
    assert np.concatenate(indices).tolist() == np.random.RandomState(5).permutation(103).tolist()


def test_noise_deals_like_iid_and_tells_its_sigma():
    labels = np.arange(100) % 10
    noisy, plain = parse("noise-0.1"), parse("iid")
    assert (noisy.noise, plain.noise) == (0.1, 0.0)
    for a, b in zip(noisy.split(labels, 5, 10, 0), plain.split(labels, 5, 10, 0), strict=True):
        assert np.array_equal(a, b)


def test_quantity_cuts_a_permutation_at_dirichlet_shares():
    # As in the digest: a permutation, then Dirichlet draws until the smallest share is worth 10 examples.
    rng = np.random.RandomState(3)
    permuted = rng.permutation(1000)
    draws = 1
    while (shares := rng.dirichlet([0.5] * 8)).min() * 1000 < 10:
        draws += 1
    expected = np.split(permuted, (np.cumsum(shares) * 1000).astype(int)[:-1])
    drawn = parse("quantity-0.5").draw(np.arange(1000) % 10, 8, 10, 3)
    assert drawn.num_draws == draws > 1
    assert all(np.array_equal(a, b) for a, b in zip(drawn.indices, expected, strict=True))


def test_none_gives_everything_to_one_client():
    (indices,) = parse("none").split(np.arange(30) % 10, 1, 10, 0)
    assert indices.tolist() == list(range(30))


partition_names = st.one_of(
    st.integers(1, 5).map("label-{}".format),
    st.sampled_from(["dir-0.3", "dir-1", "dir-10", "iid", "quantity-1", "quantity-5", "noise-0.1", "region-2-1"]),
    st.sampled_from(["dirichlet-equal-0.01", "dirichlet-equal-1"]),
    st.integers(1, 6).map("shards-{}".format),
)


@settings(max_examples=80)
@given(
    name=partition_names,
    class_counts=st.lists(st.integers(60, 200), min_size=5, max_size=5),
    num_clients=st.integers(5, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_index_goes_to_exactly_one_client_and_counts_are_kept(name, class_counts, num_clients, seed):
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(5), class_counts))
    indices = parse(name).split(labels, num_clients, 5, seed)
    assert len(indices) == num_clients
    assert np.array_equal(np.sort(np.concatenate(indices)), np.arange(len(labels)))
    assert np.array_equal(counts_of(indices, labels, 5).sum(axis=0), class_counts)
    again = parse(name).split(labels, num_clients, 5, seed)
    assert all(np.array_equal(a, b) for a, b in zip(indices, again, strict=True))
    if name.startswith("label"):
        assert all(len(np.unique(labels[client])) <= int(name[6:]) for client in indices)
    if name.startswith("shards"):
        shards = np.array_split(np.argsort(labels, kind="stable"), num_clients * int(name[7:]))
        held = {tuple(shard.tolist()) for shard in shards}
        starts = {shard[0] for shard in held}
        for own in indices:  # each is a row of whole shards
            cuts = [number for number, index in enumerate(own) if index in starts]
            dealt = {tuple(part.tolist()) for part in np.split(own, cuts[1:])}
            assert len(dealt) == int(name[7:]) and dealt <= held
    if name.startswith("dirichlet-equal"):
        assert max(map(len, indices)) - min(map(len, indices)) <= 1
    elif name.startswith(("dir", "region")):
        assert min(map(len, indices)) >= redrawn.MIN_EXAMPLES


@pytest.mark.parametrize(
    "name", ["label-2", "dir-0.5", "iid", "quantity-1", "noise-0.1", "region-4-0.5", "dirichlet-equal-1", "shards-2"]
)
def test_the_seed_changes_the_partition(name):
    labels = np.arange(1000) % 10
    first, second = (np.concatenate(parse(name).split(labels, 20, 10, seed)) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_shards_by_hand():
    """Seven examples, two clients, two shards each: sorted by label 1 4 | 0 3 | 2 6 | 5, and the seed deals the shards."""
    labels = np.array([1, 0, 2, 1, 0, 3, 2])
    dealt = parse("shards-2").split(labels, 2, 4, 3)
    order = np.random.RandomState(3).permutation(4)
    shards = [[1, 4], [0, 3], [2, 6], [5]]
    assert [rows.tolist() for rows in dealt] == [sum((shards[k] for k in own), []) for own in (order[:2], order[2:])]
    with pytest.raises(ValueError, match="shards-4 cuts the examples into clients times 4 = 8 shards, but there are 7"):
        parse("shards-4").split(labels, 2, 4, 0)


def test_two_shards_of_mnist_are_those_of_mcmahan():
    """100 clients with 600 examples of two digits, nearly all of them: the setting of McMahan et al. 2017, Section 3."""
    labels = np.repeat(np.arange(10), 6000)
    clients = parse("shards-2").split(labels, 100, 10, 0)
    assert {len(rows) for rows in clients} == {600}
    assert {len(np.unique(labels[rows])) for rows in clients} == {1, 2}


def test_the_global_generators_are_left_alone():
    np.random.seed(7)
    random.seed(7)
    before = np.random.get_state()[1].copy(), random.getstate()
    for name in ("label-2", "dir-0.5", "iid", "quantity-1"):
        parse(name).split(np.arange(500) % 10, 10, 10, 0)
    assert np.array_equal(before[0], np.random.get_state()[1])
    assert before[1] == random.getstate()


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("dir-0.10", "dir-0.1"),
        ("dir-1.0", "dir-1"),
        ("dir-1e-3", "dir-0.001"),
        ("dir-0.12345678", "dir-0.12345678"),
        ("label-02", "label-2"),
        ("quantity-.5", "quantity-0.5"),
        ("noise-0", "noise-0"),
        ("region-04-0.50", "region-4-0.5"),
        ("region-4-1e-3", "region-4-0.001"),
        ("dirichlet-equal-0.10", "dirichlet-equal-0.1"),
        ("dirichlet-equal-1e-3", "dirichlet-equal-0.001"),
        ("iid", "iid"),
        ("none", "none"),
    ],
)
def test_a_name_has_one_canonical_spelling(written, canonical):
    assert parse(written).name == canonical
    assert parse(canonical) == parse(written)


def test_every_kind_has_a_description_without_being_imported():
    code = (
        "import sys\nfrom datasets import partitions\nfor name, text in partitions.known_kinds().items(): print(name, text)\n"
        "assert not {entry.module for entry in partitions.KINDS.values()} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, texts = zip(*(line.split(" ", 1) for line in done.stdout.splitlines()), strict=True)
    assert names == (
        *("concept-shift", "dir-b", "dirichlet-equal-b", "feature-shift", "iid", "label-k", "label-shift", "natural"),
        *("noise-s", "quantity-b", "region-g-b", "shards-s", "none", "file:PATH"),
    )
    assert all(text.endswith(".") for text in texts) and known_kinds() == dict(zip(names, texts, strict=True))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lable-2", r"Unknown partition 'lable-2'\. Did you mean 'label-2'\? Known: concept-shift, dir-b"),
        ("dri-0.1", r"Unknown partition 'dri-0\.1'"),
        ("idd", r"Did you mean 'iid'\?"),
        ("label-shft", r"Did you mean 'label-shift'\?"),
        ("label-0", "whole number k of at least 1, but got 'label-0'"),
        ("label-2.5", "whole number k of at least 1"),
        ("label-", "whole number k of at least 1"),
        ("dir-0", "dir-b needs a number b above 0, but got 'dir-0'"),
        ("dir--1", "dir-b needs a number b above 0"),
        ("dir-nan", "dir-b needs a number b above 0"),
        ("dir-1e999", "dir-b needs a number b above 0"),
        ("quantity-x", "quantity-b needs a number b above 0"),
        ("noise--0.1", "noise-s needs a number s of at least 0"),
        ("region-4", "region-g-b needs a whole number g of at least 2 and a number b above 0, but got 'region-4'"),
        ("region-1-0.5", "whole number g of at least 2"),
        ("region-2.5-0.5", "whole number g of at least 2"),
        ("region-4-0", "a number b above 0, but got 'region-4-0'"),
        ("region-4-1-1", "a number b above 0, but got 'region-4-1-1'"),
        ("dirichlet-equal-0", "dirichlet-equal-b needs a number b above 0, but got 'dirichlet-equal-0'"),
        ("dirichlet-equal", "dirichlet-equal-b needs a number b above 0, but got 'dirichlet-equal'"),
        ("iid-2", r"Unknown partition 'iid-2'\. Did you mean 'iid'\?"),
        ("dirichlet-0.1", r"Unknown partition 'dirichlet-0\.1'"),
    ],
)
def test_a_bad_name_is_refused_in_one_sentence(name, message):
    with pytest.raises(ValueError, match=message):
        parse(name)


@pytest.mark.parametrize(("name", "num_clients"), [("label-2", 5), ("label-2", 9), ("label-3", 4), ("label-10", 1)])
@pytest.mark.parametrize("seed", range(3))
def test_every_class_has_an_owner_with_fewer_clients_than_classes(name, num_clients, seed):
    labels = np.arange(500) % 10
    counts = counts_of(parse(name).split(labels, num_clients, 10, seed), labels, 10)
    assert {*(counts > 0).sum(axis=1)} == {parse(name).labels_per_client}
    assert (counts.sum(axis=0) == 50).all()


@pytest.mark.parametrize(
    ("name", "num_clients", "message"),
    [
        ("label-11", 40, r"k to be at most the number of classes \(10\), but got label-11"),
        ("label-2", 4, "needs at least 5 clients to hold all 10 classes, but got 4"),
        ("label-3", 3, "needs at least 4 clients to hold all 10 classes, but got 3"),
        ("iid", 0, "clients must be at least 1, but got 0"),
        ("dir-0.1", -3, "clients must be at least 1, but got -3"),
        (
            "dir-0.5",
            51,
            "gives every client at least 10 examples, but 500 training examples are too few for 51 clients",
        ),
        (
            "quantity-0.5",
            51,
            "gives every client at least 10 examples, but 500 training examples are too few for 51 clients",
        ),
        ("iid", 501, r"clients must be at most the number of training examples \(500\), but got 501"),
        ("label-1", 501, r"clients must be at most the number of training examples \(500\), but got 501"),
        ("none", 40, "gives everything to 1 client, but got 40 clients"),
        ("region-4-0.5", 3, "region-4-0.5 has 4 groups of clients: clients must be at least 4, but got 3"),
        (
            "region-4-0.5",
            51,
            "gives every client at least 10 examples, but 500 training examples are too few for 51 clients",
        ),
    ],
)
def test_an_impossible_population_is_refused_in_one_sentence(name, num_clients, message):
    with pytest.raises(ValueError, match=message):
        parse(name).split(np.arange(500) % 10, num_clients, 10, 0)


@pytest.mark.parametrize(("num_clients", "sizes"), [(12, [3] * 4), (18, [5, 4, 5, 4]), (5, [2, 1, 1, 1])])
def test_clients_of_a_region_are_alike_up_to_one_example_of_a_class_and_regions_are_not(num_clients, sizes):
    labels = np.random.RandomState(1).permutation(np.arange(6000) % 10)
    indices = parse("region-4-0.3").split(labels, num_clients, 10, 0)
    counts = counts_of(indices, labels, 10)
    region = np.arange(num_clients) * 4 // num_clients
    assert np.bincount(region).tolist() == sizes
    pooled = np.stack([counts[region == group].sum(0) for group in range(4)])
    for group in range(4):
        own = counts[region == group]
        assert (own.max(0) - own.min(0)).max() <= 1
        assert own.sum(1).max() - own.sum(1).min() <= 1
    shares = pooled / pooled.sum(1, keepdims=True)
    apart = np.abs(shares[:, None] - shares).sum(2)[~np.eye(4, dtype=bool)] / 2
    assert apart.min() > 0.2


def test_regions_of_one_client_are_the_clients_of_dir():
    labels = np.random.RandomState(2).permutation(np.arange(3000) % 10)
    for seed in (0, 1):
        drawn, expected = (parse(name).draw(labels, 20, 10, seed) for name in ("region-20-0.2", "dir-0.2"))
        assert drawn.num_draws == expected.num_draws
        assert all(np.array_equal(a, b) for a, b in zip(drawn.indices, expected.indices, strict=True))


# Clients of equal size, whose label shares are drawn


@pytest.mark.slow
def test_label_shares_of_clients_of_equal_size_are_those_of_a_dirichlet_distribution():
    """Of the first of 200 clients, in 300 partitions: the mean share of a label is 1/4, and shares vary as those of 20 draws of
    labels by q ~ Dir(b): b 4 = 2 gives 3/16 (1 / (2 + 1) + 2 / (2 + 1) / 20)."""
    labels = np.arange(4000) % 4
    shares = [
        np.bincount(labels[parse("dirichlet-equal-0.5").split(labels, 200, 4, seed)[0]], minlength=4) / 20
        for seed in range(300)
    ]
    assert np.mean(shares, 0) == pytest.approx(np.full(4, 0.25), abs=0.05)
    assert np.var(shares, 0).mean() == pytest.approx(3 / 16 * (1 / 3 + 2 / 3 / 20), rel=0.1)


def test_a_label_that_is_used_up_is_drawn_no_more(monkeypatch):
    """Client 0 wants label 0 alone and gets all 4; its other examples, and those of client 1, are drawn by what is left."""
    monkeypatch.setattr(
        dirichlet_equal.EqualDirichlet, "_draw_shares", lambda self, classes, rng: np.array([1.0, 0.0, 0.0])
    )
    labels = np.repeat([0, 1, 2], [4, 100, 100])
    first, second = (counts_of(parse("dirichlet-equal-1").split(labels, 2, 3, seed), labels, 3) for seed in (0, 1))
    for counts in (first, second):
        assert counts.sum(1).tolist() == [102, 102] and counts[0, 0] == 4 and counts[0, 1:].min() > 30
    assert not np.array_equal(first, second)


def test_one_after_another_and_all_at_once_labels_are_drawn_alike():
    """5 of labels of which 2, 3 and 9 are left: 4,000 times each way."""
    shares, left, rng = np.array([0.6, 0.3, 0.1]), np.array([2, 3, 9]), np.random.RandomState(0)
    found = {"at once": np.zeros(3), "in turn": np.zeros(3)}
    for _ in range(4000):
        found["at once"] += dirichlet_equal._draw_counts(5, shares, left, rng)
        counts = np.zeros(3, dtype=int)
        for _ in range(5):
            odds = np.where(counts < left, shares, 0)
            counts[rng.choice(3, p=odds / odds.sum())] += 1
        found["in turn"] += counts
    assert found["at once"] / 4000 == pytest.approx(found["in turn"] / 4000, abs=0.05)


def test_clients_of_equal_size_are_more_skewed_with_a_smaller_concentration():
    labels = np.arange(5000) % 10
    largest = [
        np.mean([counts_of(parse(name).split(labels, 50, 10, seed), labels, 10).max(1).mean() for seed in range(3)])
        for name in ("dirichlet-equal-0.01", "dirichlet-equal-0.1", "dirichlet-equal-1", "dirichlet-equal-100", "iid")
    ]
    assert largest == sorted(largest, reverse=True) and largest[0] > 80


def test_a_concentration_that_gives_no_shares_is_refused():
    with pytest.raises(ValueError, match="dirichlet-equal-1e-400|found no label shares"):
        dirichlet_equal.EqualDirichlet(1e-320).split(np.arange(50) % 10, 5, 10, 0)


def test_every_client_of_a_region_is_large_enough():
    labels = np.arange(500) % 10
    found = [parse("region-4-0.3").draw(labels, 40, 10, seed) for seed in range(4)]
    assert min(len(own) for drawn in found for own in drawn.indices) >= redrawn.MIN_EXAMPLES
    assert max(drawn.num_draws for drawn in found) > 1


@pytest.mark.parametrize("name", ["dir-0.01", "dir-0.0001", "quantity-0.01"])
def test_redraws_end_with_clients_concentration_and_minimum_size(name, monkeypatch):
    monkeypatch.setattr(redrawn, "MAX_DRAWS", 50)
    with pytest.raises(
        ValueError, match=rf"50 clients with concentration {name.partition('-')[2]} and a minimum size of 10"
    ):
        parse(name).split(np.arange(500) % 10, 50, 10, 0)


def test_natural_gives_each_client_the_examples_of_one_writer():
    labels, groups = np.arange(60) % 7, np.random.default_rng(0).permutation(np.arange(60) % 4)
    for seed in (0, 1):
        indices = parse("natural").split(labels, 4, 7, seed, groups=groups)
        assert [own.tolist() for own in indices] == [np.flatnonzero(groups == writer).tolist() for writer in range(4)]


@pytest.mark.parametrize(
    "groups, num_clients, message",
    [
        (None, 4, "Partition natural needs a dataset that names its writers, such as femnist."),
        (np.arange(12) % 4, 3, "Partition natural of 4 writers has 4 clients, but got 3 clients."),
        (np.arange(12) % 4 * 2, 7, "natural of 12 examples leaves client 1 of 7 without examples"),
    ],
)
def test_natural_is_refused_where_clients_are_not_the_writers(groups, num_clients, message):
    with pytest.raises(ValueError, match=message):
        parse("natural").split(np.zeros(12, np.int64), num_clients, 3, 0, groups=groups)
