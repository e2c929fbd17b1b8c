"""What was asked of one grid over several commands: the cells of the present one, merged with those stored before."""

from collections.abc import Callable, Sequence

from bench.config.schema import run_id
from bench.experiments.cells import cell_key, ordered


def merge_cells(now: dict, earlier: dict | None, order: Sequence[dict], ended: Callable[[str], bool]) -> dict:
    """The expanded grid to store: nothing that was asked for before is lost, and no place of the table holds a mixture.

    Cells asked for now replace the stored ones of the same place where these have other settings (another dataset stood
    in, or more of its images are here now); stored cells of other seeds stay. Where only versions differ, both stay, and
    the report shows the newest that has ended. A cell without images replaces nothing that was measured.

    Args:
        now, earlier: expanded grids; earlier cells count only if the grid is still the same.
        order: all cells of the grid, in the order of its tables.
        ended: whether a run has a result.
    """
    layout = now["report"]
    cells = _by_key(now["cells"], layout)
    stored = earlier["cells"] if earlier and earlier.get("digest") == now["digest"] else []
    for key, before in _by_key(stored, layout).items():
        present = cells.get(key, [])
        if not present:
            cells[key] = before
        elif present[0]["missing"]:
            cells[key] = [cell for cell in before if cell["run"] and ended(cell["run"])] or present
        else:
            asked = {cell["run"] for cell in present}
            found = [_with_images(cell) for cell in before if _settings(cell) == _settings(present[0])]
            cells[key] = [cell for cell in found if cell["run"] not in asked] + present
    rank = {key: number for number, key in enumerate(_by_key(order, layout))}
    in_order = sorted(cells, key=lambda key: rank.get(key, len(rank)))
    return ordered(now, [cell for key in in_order for cell in sorted(cells[key], key=lambda cell: cell["seed"])])


def _by_key(cells: Sequence[dict], layout: dict) -> dict[str, list[dict]]:
    by_key: dict[str, list[dict]] = {}
    for cell in cells:
        by_key.setdefault(cell_key(layout, cell), []).append(cell)
    return by_key


def _settings(cell: dict) -> dict:
    """What the seeds of a place have in common, whatever the versions."""
    return {key: value for key, value in cell["config"].items() if key not in ("seed", "versions")}


def _with_images(cell: dict) -> dict:
    return cell | {"missing": None, "run": run_id(cell["config"])}
