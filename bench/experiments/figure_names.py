"""The kinds of figures and measured tables, and what they are called in the names of their files."""

from bench.errors import unknown

VALUES = ("last", "best", "last10")
FIGURES = (
    *("curves", "by-setting", "distributions", "local-models", "cka", "weight-norms", "embedding", "separability"),
    *("encoder-features", "client-gains", "divergences", "coalitions-by-capacity", "coalitions-by-examples"),
)
TABLES = ("encoder-heads", "encoder-information", "dataset-sizes")
CURVES = ("rounds", "communication", "time", "examples")


def figure_name(figure: dict) -> str:
    """What a figure is called in the names of its files: "communication", "by-num_clusters", "by-partition-hellinger"."""
    match figure["kind"]:
        case "curves":
            return figure["x"]
        case "by-setting":
            x = figure.get("x")  # stored figures of earlier versions have none
            return f"by-{figure['setting']}" + (f"-{x}" if x else "")
        case "distributions":
            return f"distributions-client{figure['client']}"
        case "cka":
            of_round = "" if figure["round"] == "last" else f"-round-{figure['round']}"
            return f"cka-{figure['estimator']}-{figure['show']}{of_round}"
        case "encoder-features":
            return f"encoder-features-{figure['view']}"
        case "coalitions-by-examples":
            return f"coalitions-by-examples-{figure['y']}"
        case "separability":
            return "separability" + "-relative" * figure["relative"]
        case kind if kind in FIGURES:
            return kind
    raise ValueError(unknown("kind of figure", figure["kind"], FIGURES))
