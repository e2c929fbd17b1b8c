"""`reproduction` on the command line: what it prints, writes and refuses."""

import pytest

from reports.reproduction.page import BEGIN, END
from tests.support.processes import call_bench, imported_by
from tests.support.stores import cells, results


@pytest.fixture
def folder(tmp_path):
    """A folder with a results directory, of a grid that mirrors nothing."""
    results(tmp_path / "all" / "one", cells("label-2", "fedavg"), {})
    return tmp_path / "all"


def reproduction(*words) -> tuple[int, str]:
    return call_bench("reproduction", *words)


@pytest.mark.slow
def test_a_results_directory_and_a_folder_of_them_are_the_same(folder):
    code, text = reproduction(folder)
    assert code == 0 and text.startswith("**0 of ") and "| FedConcat, all " in text
    assert reproduction(folder / "one") == (0, text)


@pytest.mark.slow
def test_a_page_gets_what_would_be_printed(folder):
    page = folder / "page.md"
    page.write_text(f"before {BEGIN}{END} after")
    code, said = reproduction(folder, "--write", page)
    assert code == 0 and said.split() == ["Saved:", str(page)]
    assert page.read_text() == f"before {BEGIN}\n\n{reproduction(folder)[1]}\n{END} after"


def test_all_mistakes_are_said_at_once(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    code, text = reproduction(folder, tmp_path / "empty", tmp_path / "none", "--write", tmp_path / "page.md")
    assert code == 2 and f"{tmp_path / 'empty'} holds no results: " in text
    assert f"There is no results directory {tmp_path / 'none'}; " in text
    assert f"There is no page {tmp_path / 'page.md'}." in text and "**0 of" not in text


@pytest.mark.slow
def test_it_needs_neither_torch_nor_ray(folder):
    assert not imported_by("reproduction", str(folder)) & {"torch", "ray"}
