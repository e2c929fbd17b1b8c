"""Which cells a table marks as not distinguishable from the best, against scipy and by hand."""

import math
import re

import pytest
from scipy import stats

BEST = [0.60, 0.62, 0.64]


def minus(points):
    """Scores that lie so many points below BEST, seed by seed."""
    return [score - below / 100 for score, below in zip(BEST, points, strict=True)]


def p_of(t_squared):
    """Two-sided p-value of Student's t with 2 degrees of freedom, whose distribution has a closed form."""
    return 1 - math.sqrt(t_squared / (t_squared + 2))


def compared(store):
    """(partition, algorithm) -> (p_value, best, not_significant)."""
    store.reproduces = None
    cells = store.build().cells.itertuples()
    return {(c.partition, c.algorithm): (c.p_value, c.best, c.not_significant) for c in cells}


def test_rivals_are_tested_on_the_same_seeds_with_holms_correction(store):
    # Differences 10, 11, 9: mean 10, std 1, t^2 = 3 * 10^2 / 1. Differences 1, -1, 6: mean 2, variance 13, t^2 = 3 * 4 / 13.
    store.add("cifar10 label-2", "fedavg", BEST)
    store.add("cifar10 label-2", "moon", minus([10, 11, 9])).add("cifar10 label-2", "fedrs", minus([1, -1, 6]))
    found = compared(store)
    assert found["label-2", "fedavg"] == (pytest.approx(math.nan, nan_ok=True), True, False)
    assert found["label-2", "moon"] == (pytest.approx(2 * p_of(300)), False, False)
    assert found["label-2", "fedrs"] == (pytest.approx(p_of(12 / 13)), False, True)
    assert p_of(12 / 13) == pytest.approx(stats.ttest_rel(BEST, minus([1, -1, 6])).pvalue)


def test_an_adjusted_p_value_is_never_below_that_of_a_clearer_rival(store):
    store.add("cifar10 label-2", "fedavg", BEST)
    for algorithm, mean in {"moon": 4.0, "fedrs": 3.6, "fedlc": 0.2}.items():  # std 1: t^2 = 3 mean^2
        store.add("cifar10 label-2", algorithm, minus([mean - 1, mean, mean + 1]))
    found = compared(store)
    assert 2 * p_of(3 * 3.6**2) < 0.05 < 3 * p_of(48)
    assert found["label-2", "moon"][0] == pytest.approx(3 * p_of(48))
    assert found["label-2", "fedrs"] == (pytest.approx(3 * p_of(48)), False, True)
    assert found["label-2", "fedlc"][0] == pytest.approx(p_of(0.12))


def test_rows_are_corrected_apart_and_only_contenders_count(store):
    for row in ("cifar10 label-2", "cifar10 label-3"):
        store.add(row, "fedavg", BEST).add(row, "moon", minus([10, 11, 9]))
    store.add("cifar10 label-2", "fedrs", [*minus([1, -1, 6])[:2], None])
    store.add("cifar10 label-2", "fedlc", minus([1, -1, 6]), substitute="svhn")
    found = compared(store)
    assert found["label-2", "moon"][0] == found["label-3", "moon"][0] == pytest.approx(p_of(300))
    assert all(math.isnan(found["label-2", name][0]) for name in ("fedrs", "fedlc"))
    assert not any(found["label-2", name][2] for name in ("fedrs", "fedlc"))


def test_only_seeds_that_both_have_are_paired(store):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.53, 0.52, 0.6])
    store.add("cifar10 label-2", "moon", [0.49, 0.5, 0.51])
    store.add("cifar10 label-2", "moon", [0.3], seed=7, config={"seed": 7})
    store.add("cifar10 label-2", "fedrs", [0.7])
    found = compared(store)
    assert found["label-2", "moon"][0] == pytest.approx(stats.ttest_rel([50, 53, 52], [49, 50, 51]).pvalue)
    assert math.isnan(found["label-2", "fedrs"][0]) and found["label-2", "fedrs"][1:] == (False, False)


def test_means_that_are_equal_print_alike_and_are_all_best(store):
    """54.45, which sums of floats miss on one side or the other."""
    store.add("cifar10 label-2", "fedavg", [0.5445] * 3).add("cifar10 label-2", "moon", [0.5443, 0.5445, 0.5447])
    store.add("cifar10 label-2", "fedrs", [0.5401, 0.5445, 0.5489])
    assert [best for _, best, _ in compared(store).values()] == [True] * 3


def test_equal_scores_and_equal_differences_have_no_spread_but_an_answer(store, recwarn):
    store.add("cifar10 label-2", "fedavg", [0.5, 0.75]).add("cifar10 label-2", "moon", [0.5, 0.75])
    store.add("cifar10 label-2", "fedrs", [0.25, 0.5])
    found = compared(store)
    assert sorted(found["label-2", name][1:] for name in ("fedavg", "moon")) == [(True, False)] * 2
    assert found["label-2", "moon"][0] == 1.0
    assert found["label-2", "fedrs"] == (0.0, False, False)
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def test_what_is_like_the_best_is_in_italics_and_named_in_the_csv(store):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", BEST).add("cifar10 label-2", "moon", minus([10, 11, 9]))
    store.add("cifar10 label-2", "fedrs", minus([1, -1, 6]))
    markdown, latex, csv = (store.render(format=f) for f in ("md", "tex", "csv"))
    assert "| **62.0±1.6** | 52.0±2.2 | _60.0±2.2_ |" in " ".join(markdown.split())
    assert r"\textbf{62.0$\pm$1.6} & 52.0$\pm$2.2 & \textit{60.0$\pm$2.2} \\" in latex
    lines = [line.split(",") for line in csv.splitlines()]
    place, p_value = lines[0].index("not_significant"), lines[0].index("p_value")
    assert [(line[place], line[p_value]) for line in lines[1:]] == [
        ("False", ""),
        ("False", "0.006633517"),
        ("True", "0.4380485"),
    ]


@pytest.mark.parametrize("seeds", [(2, 3, 4), (3, 4, 5)])
def test_a_cell_with_less_than_two_common_seeds_is_not_tested_and_that_is_said(store, seeds):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", BEST).add("cifar10 label-2", "fedrs", minus([1, -1, 6]))
    found = [store.render(format="md")]
    for seed in seeds:
        store.add("cifar10 label-2", "moon", [0.5], seed=seed, config={"seed": seed})
    found.append(store.render(format="md"))
    sentence = " Cells with fewer than 2 seeds in common with the best are not tested.\n"
    assert [sentence in text for text in found] == [False, True] and "_60.0±2.2_ | 50.0±0.0" in found[1]


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (
            1,
            "Fewer than 2 seeds per cell say nothing about which cells differ from the best of their row: none is marked.",
        ),
        (
            4,
            "5% of the rows. With 4 seeds the test often finds nothing. Italics do not mean equal.\n",
        ),
        (
            5,
            "over the same 5 seeds, level 0.05, Holm's correction within the row). The best was chosen",
        ),
    ],
)
def test_a_footnote_names_the_test_and_how_much_it_can_find(store, seeds, said):
    scores = [0.5, 0.52, 0.51, 0.55, 0.53][:seeds]
    store.add("cifar10 label-2", "fedavg", scores)
    store.add("cifar10 label-2", "moon", [0.49, 0.50, 0.52, 0.54, 0.51][:seeds])
    text = store.render()
    assert said in text and ("_" in text.split("- Accuracy")[0]) == (seeds > 1)


def test_a_table_without_rivals_says_nothing_about_differences(store):
    text = store.add("cifar10 label-2", "fedavg", BEST).render()
    assert "Italics" not in text and "say nothing" not in text


def test_cells_are_tested_against_the_one_that_the_grid_names(store):
    # fedrs is the reference: fedavg differs from it by 1, -1, 6, and moon by -9, -12, -3: mean -8, variance 21.
    store.add("cifar10 label-2", "fedavg", BEST).add("cifar10 label-2", "moon", minus([10, 11, 9]))
    store.add("cifar10 label-2", "fedrs", minus([1, -1, 6]))
    store.report |= {"against": {"algorithm": "fedrs"}}
    found = compared(store)
    assert found["label-2", "fedrs"] == (pytest.approx(math.nan, nan_ok=True), False, False)
    assert found["label-2", "fedavg"] == (pytest.approx(p_of(12 / 13)), True, True)
    assert found["label-2", "moon"] == (pytest.approx(2 * p_of(3 * 64 / 21)), False, True)
    markdown, latex, page = (store.render(format=f) for f in ("md", "tex", "html"))
    assert re.findall(r'<td data-value="[\d.]+"(?: class="(.*?)")?>', page)[:3] == ["best like-best", "like-best", ""]
    assert "| **_62.0±1.6_** | _52.0±2.2_ | 60.0±2.2 |" in " ".join(markdown.split())
    assert r"\textbf{\textit{62.0$\pm$1.6}} & \textit{52.0$\pm$2.2} & 60.0$\pm$2.2 \\" in latex
    assert "not significantly different from FedRS (two-sided paired t-test over the same 3 seeds" in markdown
    assert "from the best" not in markdown
    store.report |= {"printed": {"italics": True}}
    printed = " ".join(store.render(style="paper").split())
    assert "| **_62.0±1.6_** | _52.0±2.2_ | 60.0±2.2 |" in printed, "the best, too, differs from it or does not"
    assert (
        "not significantly different from FedRS (paired t-test over 3 seeds, Holm's correction, level 0.05)" in printed
    )
    store.add("cifar10 label-3", "fedavg", BEST).add("cifar10 label-3", "fedrs", [*BEST[:2], None])
    printed = " ".join(store.render(style="paper").split())
    assert "level 0.05; cells with fewer of them, or compared with such a one, are not tested)" in printed


def test_metrics_that_the_reference_does_not_have_are_said_not_to_be_tested(store):
    store.add("cifar10 label-2", "fedavg", BEST).add("cifar10 label-2", "moon", minus([10, 11, 9]))
    store.add("cifar10 label-2", "ditto", BEST, personal=True)
    store.add("cifar10 label-2", "fedrep", minus([1, -1, 6]), personal=True)
    store.report |= {"against": {"algorithm": "fedrep"}, "metrics": ["accuracy", "local_accuracy"]}
    store.report |= {"printed": {"italics": True}}
    assert "No cell is tested in accuracy." in store.render(format="md")
    assert "level 0.05; no cell is tested in accuracy)" in " ".join(store.render(style="paper").split())


def test_a_row_without_the_reference_is_not_tested(store):
    store.add("cifar10 label-2", "fedavg", BEST).add("cifar10 label-2", "moon", minus([10, 11, 9]))
    store.add("svhn label-2", "fedrs", BEST)
    store.report |= {"against": {"algorithm": "fedrs"}}
    assert all(math.isnan(p_value) for p_value, *_ in compared(store).values())
    assert "No cell has finished seeds in common with FedRS: none is tested." in store.render(format="md")


def test_scores_that_are_equal_but_for_rounding_do_not_differ(store):
    store.add("cifar10 label-2", "fedavg", BEST).add("cifar10 label-2", "moon", [score - 1e-14 for score in BEST])
    assert compared(store)["label-2", "moon"] == (1.0, True, False)
