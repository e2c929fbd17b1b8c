"""The pictures that the page of a board begins with: mean ranks with their intervals, and performance profiles."""

import math
from typing import Any

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from reports.figures.style import COLOURS, line_styles
from reports.tables import robust
from reports.tables.aggregate import competitors_of, contest_name, units_of
from reports.tables.rankings import are_few, first_ranks, titles_of_competitors, unit
from reports.tables.report import Report

_LEADERS = 6  # lines of profiles in colour
_FARTHEST = 20.0  # points behind the best, at most, that profiles show
_STEP, _HEIGHT = 17, 340  # pixels of a row of ranks, and of profiles
_OTHERS = "#8a949e"
_DASHES = ([1, 0], [6, 3], [2, 2])  # of the first, the second and the third leader of a colour, in pixels


def collect(report: Report, grid: StoredGrid) -> list[dict[str, Any]]:
    """The charts of a board; none of other reports, or before there are ranks.

    Returns:
        For each: "title", "note", "spec" (a Vega-Lite specification without its points) and "points".
    """
    found = report.standings_data
    if report.scores is None or found is None or not report.standings:
        return []
    called = titles_of_competitors(grid)
    metric, ranks = found["metric"].iloc[0], first_ranks(found)
    order = [called[one] for one in ranks["column"]]
    title, pairs = METRICS[metric].title, f"{len(report.scores)} pairs of {contest_name(grid)} and {unit(grid)}"
    points = [{"method": called[line.column], "rank": _short(line.value), **_ends(line)} for line in ranks.itertuples()]
    profiles = robust.profiles(report.scores)
    reach = max(1.0, min(_FARTHEST, max((steps[-1] for steps, _ in profiles.values() if len(steps)), default=1.0)))
    steps = [
        {"method": called[one], "x": x, "share": share}
        for one, (xs, shares) in profiles.items()
        for x, share in _stairs(xs.tolist(), (100 * shares).tolist(), reach)
    ]
    leaders, known = order[:_LEADERS], "low" in points[0]
    intervals = (
        f"lines are 95 % intervals{f', too narrow, of few {units_of(grid)}' * are_few(found, report.cells, grid)}; "
        * known
    )
    return [
        {
            "title": f"Mean ranks by {title}",
            "note": f"1 is the best; {intervals}over {pairs}",
            "spec": _ranks(order, known),
            "points": points,
        },
        {
            "title": "How often a method is how near to the best",
            "note": f"percentage of the {pairs} in which it is within x points of the best; the first {len(leaders)} in colour",
            "spec": _profiles(leaders, _dashes(colours(report, grid)), reach),
            "points": steps,
        },
    ]


def colours(report: Report, grid: StoredGrid) -> list[str]:
    """The colours of the first methods of a board, in the order of ranks, as in curves and figures; [] of other reports.

    Where several are of one method, in different wrappers, the first has its colour, and others have free ones.
    """
    if report.scores is None or report.standings_data is None:
        return []
    styles = line_styles([*dict.fromkeys(competitors_of(report.cells, grid))], report.styles)
    leaders = [*first_ranks(report.standings_data)["column"][:_LEADERS]]
    methods, usual = [one.split()[0] for one in leaders], [styles[one].color for one in leaders]
    free = iter([colour for colour in COLOURS if colour not in usual])
    return [next(free) if methods[place] in methods[:place] else usual[place] for place in range(len(leaders))]


def _dashes(leaders: list[str]) -> list[list[int]]:
    """Dashes that tell leaders of one colour apart."""
    return [_DASHES[leaders[:place].count(colour) % len(_DASHES)] for place, colour in enumerate(leaders)]


def _stairs(xs: list[float], shares: list[float], reach: float) -> list[tuple[float, float]]:
    """The corners of a profile from 0 to `reach`."""
    seen = [(x, share) for x, share in zip(xs, shares, strict=True) if x <= reach]
    start = [] if seen and seen[0][0] == 0 else [(0.0, 0.0)]
    corners = [*start, *seen]
    return [(_short(x), _short(share)) for x, share in [*corners, (reach, corners[-1][1])]]


def _ends(line: Any) -> dict[str, float]:
    """The ends of an interval, if there is one."""
    return {} if math.isnan(line.low) else {"low": _short(line.low), "high": _short(line.high)}


def _short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def _ranks(order: list[str], with_intervals: bool) -> dict[str, Any]:
    y = {"field": "method", "type": "nominal", "sort": order, "title": None, "axis": {"labelLimit": 200, "grid": True}}
    x = {"type": "quantitative", "title": "mean rank", "scale": {"zero": False}, "axis": {"tickMinStep": 1}}
    tooltip = [
        {"field": name, "type": "nominal" if name == "method" else "quantitative"}
        for name in ("method", "rank", *["low", "high"] * with_intervals)
    ]
    interval = {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y, "tooltip": tooltip}
    rule = {"mark": {"type": "rule", "strokeWidth": 2, "color": _OTHERS}, "encoding": interval}
    return {
        "data": {"name": "points"},
        "layer": [
            *[rule] * with_intervals,
            {
                "mark": {"type": "circle", "size": 70, "opacity": 1},
                "encoding": {"x": {"field": "rank", **x}, "y": y, "tooltip": tooltip},
            },
        ],
        "width": "container",
        "height": _STEP * len(order),
    }


def _profiles(leaders: list[str], dashes: list[list[int]], reach: float) -> dict[str, Any]:
    x = {
        "field": "x",
        "type": "quantitative",
        "title": "points behind the best, at most",
        "scale": {"domain": [0, reach], "nice": False},
    }
    y = {"field": "share", "type": "quantitative", "title": "percentage of pairs", "scale": {"domain": [0, 100]}}
    legend = {
        "orient": "bottom",
        "title": None,
        "columns": 2,
        "labelLimit": 240,
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
    }
    method = {"field": "method", "type": "nominal", "legend": legend}
    # The range "ordinal" is that of the theme, whose categories are of all lines.
    colour = method | {"scale": {"domain": leaders, "range": "ordinal"}}
    dash = method | {"scale": {"domain": leaders, "range": dashes}}
    tooltip = [
        {"field": "method", "type": "nominal"},
        {"field": "x", "type": "quantitative"},
        {"field": "share", "type": "quantitative"},
    ]
    line = {"type": "line", "interpolate": "step-after", "clip": True}
    lead = {"field": "method", "oneOf": leaders}
    return {
        "data": {"name": "points"},
        "layer": [
            {
                "transform": [{"filter": {"not": lead}}],
                "mark": {**line, "strokeWidth": 1, "opacity": 0.45, "color": _OTHERS},
                "encoding": {"x": x, "y": y, "detail": {"field": "method", "type": "nominal"}, "tooltip": tooltip},
            },
            {
                "transform": [{"filter": lead}],
                "mark": {**line, "strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash, "tooltip": tooltip},
            },
        ],
        "width": "container",
        "height": _HEIGHT,
    }
