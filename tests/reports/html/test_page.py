"""The HTML page in a real browser: what a reader sees, chooses and may not be hurt by."""

import json
import math
import re
from io import StringIO
from itertools import pairwise

import altair
import pandas as pd
import pytest
from jsonschema import ValidationError
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from algorithms import title_of
from reports import api
from reports.figures.style import METHODS
from reports.html import vega
from reports.tables.names import Names
from tests.reports.conftest import Store
from tests.support.chosen import choice
from tests.support.pages import embedded
from tests.support.tools import path_of

NASTY = """<img src=x onerror=hacked()>&amp;"'</script><script>hacked()</script><!--{{ 7*7 }}"""
PHONE = 360  # pixels


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Store:
    """One cell of every kind, names that break what does not escape them, and the partition of one row."""
    store = Store(tmp_path_factory.mktemp("html"))
    store.title = NASTY
    store.report |= {"notes": [NASTY]}
    store.add("cifar10 none", "centralized", [0.702] * 3)
    store.add("cifar10 label-2", "fedavg", [0.53, 0.53, 0.536])
    store.add("cifar10 label-2", "moon", [0.60] * 3, choice={"mu": 1})
    store.add("cifar10 dir-0.1", "fedavg", [0.61, None, 0.65])
    store.add("cifar10 dir-0.1", "moon", ["diverged"] * 3, choice={"mu": 1})
    store.add("cifar10 label-3", "fedavg", [0.09] * 3)
    store.add("cifar10 label-3", "moon", ["failed", 0.5, 0.5], choice={"mu": 1})
    store.add("svhn label-2", "fedavg", [None] * 3, missing="no data: svhn")
    store.add("data label-2", NASTY.replace(" ", "_"), [0.4] * 3, config={"dataset": NASTY})
    for cell in store.cells[-3:]:
        cell["dataset"] = NASTY
    for number in range(8):  # a table that is wider than a phone, and than most screens
        store.add("cifar10 label-2", f"a-method-with-a-long-name-{number}", [0.1 + number / 100] * 3)
    store.column_order = ["fedavg", "moon"]
    store.save()
    failed = next(cell["run"] for cell in store.cells if cell["partition"] == "label-3" and cell["algorithm"] == "moon")
    path = store.folder / "runs" / failed / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reason": f"Traceback: {NASTY}"}))
    for cell in store.cells:
        if cell["partition"] == "label-3" and cell["algorithm"] == "moon":  # as a method that calibrates at the end
            rows = store.folder / "runs" / cell["run"] / "rounds.jsonl"
            rows.write_text("".join(rows.read_text().splitlines(keepends=True)[-1:]))
    counts = {"classes": ["cat", NASTY, "dog"], "label_counts": [[5, 0, 7], [0, 9, 1]]}
    probe = store.folder / "runs" / store.cells[3]["run"] / "probe-label-counts.json"
    probe.write_text(json.dumps({"version": 1, "result": counts}))
    return store


@pytest.fixture(scope="module")
def path(stored):
    return stored.grid_report().write(formats=("html",))["html"]


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = path_of("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, Service(path_of("chromedriver")))
    yield found
    found.quit()


@pytest.fixture
def page(browser, path):
    """The browser with the page opened anew, its charts drawn."""
    resize(browser, 1280)
    scheme(browser, "light")
    browser.get(path.as_uri())
    wait(browser, lambda: marks(browser, "#curve-chart", "line") and marks(browser, "#partition-chart", "symbol"))
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def wait(browser, condition):
    return WebDriverWait(browser, 60, poll_frequency=0.05).until(lambda _: condition())


def resize(browser, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def scheme(browser, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def marks(browser, chart: str, kind: str) -> int:
    """Number of lines, or of symbols, of a chart that are to be seen."""
    found = f"{chart} svg .mark-{kind}.role-mark path"
    return len([one for one in browser.find_elements(By.CSS_SELECTOR, found) if one.get_attribute("d")])


def texts(browser, selector: str) -> list[str]:
    """Of everything that is shown, as it stands in the document."""
    found = "[...document.querySelectorAll(arguments[0])].filter(e => !e.closest('[hidden]'))"
    return browser.execute_script(f"return {found}.map(e => e.textContent.trim())", selector)


def button(browser, name: str, within: str):
    (found,) = [one for one in browser.find_elements(By.CSS_SELECTOR, f"{within} button") if one.text == name]
    return found


def head(browser, name: str):
    return button(browser, name, "#table-1 thead")


def row_labels(browser) -> list[str]:
    return [", ".join(labels) for labels in zip(*[iter(texts(browser, "#table-1 tbody th"))] * 2, strict=True)]


def cell_values(browser) -> dict[tuple[str, ...], float | None]:
    """(row labels, column) -> number behind each cell of the table that is not empty."""
    script = """
        const table = document.querySelector('#table-1');
        const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
        return [...table.tBodies[0].rows].flatMap(row => [...row.cells].slice(2).map((cell, i) =>
            [row.cells[0].textContent, row.cells[1].textContent, heads[i + 2], cell.textContent.trim(), cell.dataset.value]));
    """
    found = browser.execute_script(script)
    return {tuple(place): None if value is None else float(value) for *place, text, value in found if text}


def place_of(line) -> tuple[str, str, str]:
    """The ids of a cell, where the table shows it."""
    return line.dataset, "label-2" if line.partition == "none" else line.partition, line.algorithm


@pytest.mark.slow
def test_numbers_are_those_of_the_csv(page, stored):
    text = stored.render(format="csv")
    lines = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    csv = {
        tuple(
            Names().value(key, value).plain
            for key, value in zip(("dataset", "partition", "algorithm"), place_of(line), strict=True)
        ): line
        for line in lines.itertuples()
    }
    shown = cell_values(page)
    assert shown.keys() == csv.keys() and len(shown) > 10
    for place, value in shown.items():
        assert value == (float(csv[place].mean) if csv[place].mean else None)
    assert "53.2±0.3" in texts(page, "#table-1 td button") and "60.0±0.0" in texts(page, "#table-1 .best button")
    assert "(53.6±0.8, -0.4, inside)" in texts(page, "#table-1 td small")


@pytest.mark.slow
def test_a_column_sorts_down_then_up_then_as_in_the_paper(page):
    before = row_labels(page)
    values = cell_values(page)
    for direction, sign in (("descending", -1), ("ascending", 1)):
        head(page, "FedAvg").click()
        assert head(page, "FedAvg").find_element(By.XPATH, "..").get_attribute("aria-sort") == direction
        order = [values.get((*label.rsplit(", ", 1), "FedAvg")) for label in row_labels(page)]
        numbers = [value for value in order if value is not None]
        assert numbers == sorted(numbers, key=lambda value: sign * value) and len(numbers) == 3
        assert order[:3] == numbers  # what has none comes last
    head(page, "FedAvg").click()
    assert row_labels(page) == before
    head(page, "Partition").click()
    partitions = [label.rsplit(", ")[-1] for label in row_labels(page)]
    assert partitions == sorted(partitions)
    assert [one.text for one in page.find_elements(By.CSS_SELECTOR, "#table-1 [aria-sort]")] == ["Partition"]


def test_texts_sort_by_the_decimals_in_them(browser, store):
    settings = ("dir-0.5", "label-10", "dir-0.05", "dir-0.1", "label-2")
    for number, partition in enumerate(settings):
        store.add(f"cifar10 {partition}", "fedavg", [0.1 + number / 100])
    browser.get(store.grid_report().write(formats=("html",))["html"].as_uri())
    head(browser, "Partition").click()
    order = ["#C = 2", "#C = 10", "Dir(0.05)", "Dir(0.1)", "Dir(0.5)"]
    assert [label.rsplit(", ")[-1] for label in row_labels(browser)] == order


def test_a_filter_keeps_the_rows_with_all_its_words(page):
    box = page.find_element(By.CSS_SELECTOR, '[data-filters="table-1"]')
    box.send_keys("#c = CIFAR")
    assert row_labels(page) == ["CIFAR-10, #C = 2", "CIFAR-10, #C = 3"]
    assert texts(page, '[data-counts="table-1"]') == ["2 of 5 rows"]
    box.send_keys(Keys.CONTROL, "a", Keys.DELETE)
    assert len(row_labels(page)) == 5
    runs = page.find_element(By.CSS_SELECTOR, '[data-filters="all-runs"]')
    runs.send_keys("diverged")
    assert texts(page, "#all-runs td.diverged") == ["diverged"] * 3
    assert texts(page, '[data-counts="all-runs"]') == ["3 of 48 runs"] and len(texts(page, "#all-runs tbody tr")) == 3


def test_curves_switch_their_axis_their_methods_and_their_panel(page):
    titles = {"rounds": "Communication round", "bytes": "Communication (MB per client)", "seconds": "Time (s)"}
    titles["examples"] = "Training examples (millions)"
    for name, title in titles.items():
        chosen = button(page, name, "#axes")
        chosen.click()
        wait(page, lambda title=title: title in texts(page, "#curve-chart svg text"))
        assert chosen.get_attribute("aria-pressed") == "true"
        assert len(page.find_elements(By.CSS_SELECTOR, '#axes [aria-pressed="true"]')) == 1
    drawn = marks(page, "#curve-chart", "line")
    button(page, "MOON", "#lines").click()
    wait(page, lambda: marks(page, "#curve-chart", "line") == drawn - 1)
    Select(page.find_element(By.ID, "panel")).select_by_visible_text("CIFAR-10, Dir(0.1)")
    wait(page, lambda: marks(page, "#curve-chart", "line") == 2)  # fedavg and centralized
    assert page.find_element(By.ID, "curve-notes").text == "FedAvg: 2/3 seeds"


def test_a_method_with_one_round_is_a_point(page):
    Select(page.find_element(By.ID, "panel")).select_by_visible_text("CIFAR-10, #C = 3")
    seen = "#curve-chart svg .mark-symbol.role-mark path[opacity='1']"
    wait(page, lambda: len(page.find_elements(By.CSS_SELECTOR, seen)) == 1)
    (point,) = page.find_elements(By.CSS_SELECTOR, seen)
    assert "method: MOON" in point.get_attribute("aria-label")


def test_a_curve_looks_as_in_the_figures(page):
    drawn = {
        line.get_attribute("stroke"): line.get_attribute("stroke-dasharray")
        for line in page.find_elements(By.CSS_SELECTOR, "#curve-chart svg .mark-line.role-mark path")
    }
    rgb = {"fedavg": "rgb(63, 144, 218)", "moon": "rgb(146, 218, 221)"}
    dashes = {
        "fedavg": "{0} 0px, {0} 1px",
        "moon": "{0} 0px, {0} 6px, rgba(0, 0, 0, 0) 6px, rgba(0, 0, 0, 0) 8px, {0} 8px",
    }
    for method in ("fedavg", "moon"):
        assert METHODS[method].color in drawn
        sample = "return getComputedStyle(arguments[0], '::before').backgroundImage"
        shown = page.execute_script(sample, button(page, title_of(method), "#lines"))
        assert dashes[method].format(rgb[method]) in shown
    assert drawn[METHODS["fedavg"].color] == "1,0" and drawn[METHODS["moon"].color] == "6,2,1,2"


def test_in_the_dark_colours_stay_unless_they_are_too_dark(stored):
    store = Store(stored.folder / "dark")
    for method in ("fedavg", "fedconcat"):
        store.add("cifar10 label-2", method, [0.5])
    text = store.render(format="html")
    colours = {name: theme["colours"] for name, theme in embedded(text)["themes"].items()}
    assert colours["light"] == {title_of(method): METHODS[method].color for method in ("fedavg", "fedconcat")}
    assert colours["dark"]["FedAvg"] == colours["light"]["FedAvg"]
    light, dark = (re.findall("..", colours[name]["FedConcat"][1:]) for name in ("light", "dark"))
    assert all(int(a, 16) < int(b, 16) for a, b in zip(light, dark, strict=True))


@pytest.mark.slow
def test_charts_are_written_as_vega_lite_defines_them(path):
    data = embedded(path.read_text())
    specs = [spec for of_metric in data["curves"]["specs"].values() for spec in of_metric.values()]
    specs += [plot["spec"] for plot in data["partitions"]]
    assert len(specs) == 5
    for spec in specs:
        for theme in data["themes"].values():
            altair.Chart.from_dict(spec | {"config": theme["config"]}, validate=True)
    with pytest.raises(ValidationError):
        altair.Chart.from_dict(specs[0] | {"layer": "none"}, validate=True)
    assert altair.SCHEMA_VERSION.startswith(f"v{vega.VEGA_LITE}.")


@pytest.mark.slow
def test_where_the_script_cannot_be_kept_the_page_is_the_same(stored, path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "file"))
    vega.script.cache_clear()
    assert stored.render(format="html") == path.read_text()


@pytest.mark.slow
def test_a_damaged_script_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path))
    vega.script.cache_clear()
    text = vega.script()
    (kept,) = tmp_path.glob("*.js")
    assert kept.read_text().startswith(text)
    kept.write_text(kept.read_text()[:1000])
    vega.script.cache_clear()
    assert vega.script() == text and len(kept.read_text()) > 1000
    vega.script.cache_clear()


def test_tables_say_what_those_in_markdown_say(browser, store):
    store.report |= {"standings": True, "gains_over": {"algorithm": "fedavg"}, "notes": ["A note."], "also": ["last10"]}
    for row, shift in (("cifar10 label-2", 0.0), ("cifar10 dir-0.1", 0.02)):
        store.add(row, "fedavg", [0.53 + shift, 0.531 + shift, 0.53 + shift])
        store.add(row, "moon", [0.60, 0.62, 0.64]).add(row, "fedrs", [0.59, 0.63, 0.62])
    store.add("cifar10 label-3", "moon", [0.6, None, 0.6])
    text = store.render()
    browser.get(store.grid_report().write(formats=("html",))["html"].as_uri())
    script = """
        const marks = { 'best': '**', 'like-best': '_' };
        const shown = [];
        for (const table of document.querySelectorAll('#tables table')) for (const row of table.rows)
            shown.push([...row.cells].map(cell => [...cell.classList].map(name => marks[name]).join('') + cell.textContent));
        return [shown, [...document.querySelectorAll('.notes li')].map(note => note.textContent)];
    """
    shown, notes = browser.execute_script(script)
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|") and ":--" not in line]
    assert [[bare(cell) for cell in row] for row in shown] == [[bare(cell) for cell in row] for row in lines]
    marks = [re.match(r"[*_]*", cell)[0] for row in shown for cell in row]
    assert marks.count("**") == 4 and marks.count("_") == 6 and len(shown) == 12
    assert notes[:-1] == [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
    values = browser.execute_script(
        "return [...document.querySelectorAll('#standings-1 td')].map(e => e.dataset.value)"
    )
    assert values[0] == "3" and values[1] is None


def bare(cell: str) -> str:
    """A cell without spaces, commas, and the end of its mark."""
    mark, text = re.fullmatch(r"\s*([*_]*)(.*?)\s*", cell, re.DOTALL).groups(default="")
    return mark + re.sub(r"[\s,*_]", "", text)


def test_bubbles_are_the_label_counts(page):
    assert marks(page, "#partition-chart", "symbol") == 4
    labels = [
        one.get_attribute("aria-label")
        for one in page.find_elements(By.CSS_SELECTOR, "#partition-chart svg .mark-symbol.role-mark path")
    ]
    assert "client: 0; class: dog; examples: 7" in labels


def test_a_cell_leads_to_its_runs_by_keyboard(page):
    opener = page.find_element(By.CSS_SELECTOR, "#table-1 td button")
    page.execute_script("arguments[0].focus()", opener)
    opener.send_keys(Keys.ENTER)
    dialog = page.find_element(By.ID, "dialog")
    assert dialog.get_attribute("open") is not None
    assert texts(page, "#dialog-title") == ["CIFAR-10, #C = 2, FedAvg"]
    summaries = page.find_elements(By.CSS_SELECTOR, "#dialog summary")
    assert [one.text.split(", ")[1] for one in summaries] == [f"seed {seed}: done" for seed in range(3)]
    summaries[0].send_keys(Keys.ENTER)
    shown = texts(page, "#dialog details[open] dt")
    assert {"algorithm.name", "model", "versions.torch", "summary.last.accuracy"} <= set(shown)
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert dialog.get_attribute("open") is None
    assert page.switch_to.active_element == opener


def test_tab_goes_through_everything_in_the_order_of_the_page(page):
    script = """
        const order = [...document.querySelectorAll('*')];
        return [order.indexOf(document.activeElement), document.activeElement.tagName];
    """
    reached = []
    for _ in range(12):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.execute_script(script))
    assert all(a < b for (a, _), (b, _) in pairwise(reached))
    assert [name for _, name in reached[:7]] == ["A"] * 5 + ["INPUT", "DIV"]  # the table scrolls in a box of its own
    assert {name for _, name in reached[7:]} == {"BUTTON"}
    assert (
        page.execute_script("return document.querySelectorAll('[onclick], [tabindex]:not([tabindex=\"0\"])').length")
        == 0
    )


def test_names_are_text_whatever_is_in_them(page):
    assert page.title == page.find_element(By.TAG_NAME, "h1").text == " ".join(NASTY.split())
    assert NASTY in texts(page, ".notes li") and NASTY in texts(page, "#table-1 th")
    assert any(NASTY in name for name in texts(page, "#panel option"))
    assert any(name.startswith("<img src=x") for name in texts(page, "#partition-chart svg text"))
    failed = page.find_element(By.CSS_SELECTOR, "#all-runs tr:has(.failed) button")
    page.execute_script("arguments[0].click()", failed)
    assert texts(page, "#dialog pre") == [f"Traceback: {NASTY}"]
    for number, name in enumerate(texts(page, "#panel option")):
        if NASTY in name:
            page.execute_script("document.getElementById('dialog').close()")
            Select(page.find_element(By.ID, "panel")).select_by_index(number)
    wait(page, lambda: NASTY.replace(" ", "_") in texts(page, "#lines button"))
    assert page.execute_script("return document.querySelectorAll('img, script:not([type])').length") == 0


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_on_a_phone_nothing_but_tables_scrolls_sideways(page, colours):
    scheme(page, colours)
    resize(page, PHONE)
    page.refresh()
    wait(page, lambda: marks(page, "#curve-chart", "line") and marks(page, "#partition-chart", "symbol"))
    page.find_element(By.CSS_SELECTOR, "#table-1 td button").click()
    assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE
    assert page.execute_script("const d = document.getElementById('dialog'); return d.scrollWidth <= d.clientWidth")
    assert page.execute_script("const t = document.querySelector('.scroll'); return t.scrollWidth > t.clientWidth")
    red, *_ = map(
        int, re.findall(r"\d+", page.execute_script("return getComputedStyle(document.body).backgroundColor"))
    )
    assert (red < 60) == (colours == "dark")


def printing(browser) -> None:
    """As a printer sees the page, on A4 or Letter within margins."""
    resize(browser, 700)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})


def shown_texts(browser, selector: str) -> list[str]:
    return [one.text for one in browser.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]


@pytest.mark.slow
def test_in_print_tables_fit_charts_have_their_legend_and_a_line_says_what_is_left_out(page):
    button(page, "MOON", "#lines").click()
    for word in "label-3":
        page.find_element(By.CSS_SELECTOR, "[data-filters='table-1']").send_keys(word)
    printing(page)
    assert shown_texts(page, "#lines button") == [name for name in texts(page, "#lines button") if name != "MOON"]
    assert shown_texts(page, "#curve-title") == [f"{texts(page, '#panel option')[0]}, over rounds"]
    assert shown_texts(page, "#partition-title") and not shown_texts(page, ".tools, nav, #runs, .chart details")
    said = shown_texts(page, "main > .printed:last-child")
    assert len(said) == 1 and re.fullmatch(r"Not printed: curves of other panels .* list of the \d+ runs\. .*", said[0])
    (left,) = shown_texts(page, "[data-left='table-1']")
    assert re.fullmatch(r"Printed: \d of \d rows, those with: label-3", left)
    widths = page.execute_script(
        "return [...document.querySelectorAll('.chart svg')].map(e => e.getBoundingClientRect().width)"
    )
    assert max(widths) <= 700
    wide = "[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 701)"
    assert (
        page.execute_script(f"return {wide}.filter(e => !e.closest('.turned')).map(e => e.outerHTML.slice(0, 80))")
        == []
    )
    scheme(page, "light")


@pytest.mark.slow
def test_a_table_that_would_have_too_small_letters_is_turned_with_its_heading(browser, store, tmp_path):
    store.reproduces = None
    for count, turned in ((2, False), (16, True)):
        for number in range(count):
            store.add("cifar10 label-2", f"a-method-of-{count}-{number}", [0.5] * 3)
        resize(browser, 1280)
        browser.get(store.grid_report().write(formats=("html",))["html"].as_uri())
        found = browser.execute_script(
            "return [...document.querySelectorAll('#table-1, #tables h2')].map("
            "e => e.tagName === 'H2' ? e.classList.contains('turned') : e.parentElement.classList.contains('turned'))"
        )
        assert found[:2] == [turned, turned]
        fit = float(browser.execute_script("return document.querySelector('#table-1').style.getPropertyValue('--fit')"))
        assert fit <= 1 and (turned or fit >= 0.6)


def test_screen_readers_hear_what_charts_and_tables_show(page):
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    names = {}
    for node in nodes:
        if not node["ignored"]:
            names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert not any("Vega visualization" in name for found in names.values() for name in found)
    charts = names["graphics-document"] if "graphics-document" in names else names["GraphicsDocument"]
    assert charts[0].startswith("accuracy over rounds, CIFAR-10, #C = 2: curves of FedAvg")
    assert charts[1].startswith("Training examples of each class at each client: CIFAR-10")
    assert names["table"] and all(names["table"]) and len({*names["table"]}) == len(names["table"])
    assert names["table"][0].endswith(": accuracy for each Dataset, Partition")


@pytest.mark.slow
def test_the_page_asks_for_nothing_else(page, path):
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.find_elements(By.CSS_SELECTOR, "[src], link:not([href^='data:'])") == []
    assert "default-src 'none'" in path.read_text()  # and if it asked, it would get nothing


def test_the_same_results_make_the_same_page(stored, path):
    assert stored.render(format="html") == path.read_text()


@pytest.mark.parametrize("style", api.STYLES)
def test_a_page_has_names_of_image_folders_and_no_path(store, style):
    spring, autumn = "imagefolder:/home/me/spring/leaves", "imagefolder:/home/me/autumn/leaves"
    store.title = f"fedavg-{spring}-label-2"
    store.add(f"{spring} label-2", "fedavg", [0.5] * 2).add(f"{autumn} label-2", "fedavg", [0.6, "failed"])
    store.add("svhn label-2", "fedavg", [0.5], substitute=autumn)
    folder = store.save()
    path = folder / "runs" / store.cells[3]["run"] / "record.json"
    reason = "Cannot read /home/me/autumn/leaves/train/oak/1.png."
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reason": reason}))
    probe = folder / "runs" / store.cells[0]["run"] / "probe-label-counts.json"
    probe.write_text(json.dumps({"version": 1, "result": {"classes": ["oak", "elm"], "label_counts": [[3, 4]]}}))
    grid = f"fedavg-{spring}-label-2".replace("/", "_")
    text = (folder / "grids" / "small_table@paper.json").read_text()
    (folder / "grids" / f"{grid}@paper.json").write_text(text.replace('"small_table"', json.dumps(grid)))
    for name in ("small_table", grid):
        page = api.GridReport(folder, name, "paper").render(format="html", style=style)
        own, script, rest = page.partition('<script type="module">')
        assert "/me/" not in own and "_me_" not in own and "imagefolder:" not in own, name
        assert "/home/me" not in rest
        assert own.count("leaves (spring)") > 4 and "Cannot read leaves (autumn)/train/oak/1.png." in own
        assert "on leaves (autumn)" in own or style == "paper"


@pytest.mark.slow
def test_a_page_of_table_1_with_all_its_runs_is_small(tmp_path, monkeypatch):
    """477 runs as in Table 1: 20 rows of 8 methods, less one, by three seeds; more points than a line can have."""
    monkeypatch.setattr("tests.reports.conftest.SEEN", range(1, 200))
    store = Store(tmp_path)
    for number in range(159):
        row, method = divmod(number, 8)
        score = 0.5 + math.sin(number) / 5
        store.add(f"cifar{row} label-2", f"method-{method}", [score + 0.00123 * seed for seed in range(3)])
    page = store.render(format="html")
    assert len(store.cells) == 477 and page.count('"status":"done"') == 477
    assert len(page.encode()) < 4_000_000


@pytest.fixture
def board(browser, tmp_path):
    """The page of a board of eight methods with choices."""
    store = Store(tmp_path)
    store.report = {"rows": ["algorithm"], "columns": "partition", "metric": "accuracy", "metrics": ["accuracy", "mb"]}
    store.report |= {"compared": ["algorithm"], "standings": "seeds"}
    for number in range(8):
        for row in ("cifar10 label-2", "cifar10 dir-0.1"):
            store.add(row, f"method-{number}", [0.5 + number / 50, 0.5 + number / 40], tuned=choice(0.1 * number))
    browser.get(store.grid_report().write(formats=("html",))["html"].as_uri())
    wait(browser, lambda: marks(browser, "#board-0", "symbol") and marks(browser, "#board-1", "line"))
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_a_board_begins_with_pictures_of_its_ranks_and_unfolds_choices(board):
    sections = board.execute_script("return [...document.querySelectorAll('main > section')].map(one => one.id)")
    assert sections[:4] == ["board", "tables", "curves", "numbers"]
    assert marks(board, "#board-0", "symbol") == 8 and marks(board, "#board-1", "line") == 8
    order = [f"method-{number}" for number in reversed(range(8))]
    assert texts(board, "#table-1 tbody summary") == texts(board, "#standings-1 tbody th") == order
    opened = board.find_element(By.CSS_SELECTOR, "#table-1 tbody details")
    assert not opened.find_element(By.TAG_NAME, "dl").is_displayed()
    opened.find_element(By.TAG_NAME, "summary").click()
    assert opened.find_element(By.TAG_NAME, "dl").text.splitlines() == ["#C = 2", "μ=0.7", "Dir(0.1)", "μ=0.7"]
    head(board, "Method").click()
    assert texts(board, "#table-1 tbody summary") == order[::-1]
    assert not texts(board, "#choices-1") and texts(board, "#spaces-1 tbody th") == order


def test_on_a_phone_a_board_does_not_scroll_sideways(board):
    resize(board, 400)
    wide = "return document.documentElement.scrollWidth"
    assert wait(board, lambda: board.execute_script(wide) == 400)
