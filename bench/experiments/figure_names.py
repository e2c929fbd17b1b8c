"""What figures are called in the names of their files."""

from bench.names import unknown
from reports import FIGURES


def figure_name(figure: dict) -> str:
    """What a figure is called in the names of its files: "communication", "by-num_clusters", "distributions-client0"."""
    match figure["kind"]:
        case "curves":
            return figure["x"]
        case "by-setting":
            return f"by-{figure['setting']}"
        case "distributions":
            return f"distributions-client{figure['client']}"
        case "cka":
            of_round = "" if figure["round"] == "last" else f"-round-{figure['round']}"
            return f"cka-{figure['estimator']}-{figure['show']}{of_round}"
        case "separability":
            return "separability" + "-relative" * figure["relative"]
        case kind if kind in FIGURES:
            return kind
    raise ValueError(unknown("kind of figure", figure["kind"], FIGURES))
