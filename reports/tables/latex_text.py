"""Any text as LaTeX that pdflatex compiles without further packages."""

import functools
import re
import unicodedata

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\to$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
    "∞": r"$\infty$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ",  # LaTeX has the other capitals as Latin letters only
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega "
        "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split(),
        strict=True,
    )
)
# Supported besides ASCII and accented letters; the rest of Latin-1 needs another font encoding.
_SET_AS_IS = frozenset("–—‘’“”…•€™ıłŁœŒ¡¿©®°·×÷µ²³¹½¼¾æÆøØåÅßª")
_OGONEK = "\u0328"  # needs another font encoding as well


@functools.lru_cache(maxsize=10_000)  # reports ask for few names thousands of times
def escape(text: str) -> str:
    """Text in one line with LaTeX's special characters escaped; unsupported ones become their code point, "[U+4E2D]".
    Powers of numbers, "10^6", are formulas."""
    parts = re.split(r"(?<![\w^])(\d+\^-?\d+)(?![\w^])", " ".join(text.split()))  # powers at odd places
    text = "".join(_power(part) if place % 2 else "".join(map(_escaped, part)) for place, part in enumerate(parts))
    return re.sub("-(?=-)", "-{}", text)  # otherwise LaTeX prints a dash


def formula(symbol: str) -> str:
    """A symbol as a formula of LaTeX: "$K_e$" for "K_e", "$\\lambda _k$" for "λ_k", in which pdflatex knows no λ."""
    parts = (one if one.isascii() else _escaped(one).strip("$") + " " for one in symbol)  # a space ends a command
    return f"${''.join(parts).strip()}$"


def _power(text: str) -> str:
    """ "$10^{6}$" for "10^6"."""
    base, _, exponent = text.partition("^")
    return f"${base}^{{{exponent}}}$"


def _escaped(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character in _GREEK:
        return f"$\\{_GREEK[character]}$"
    base, *accents = list(unicodedata.normalize("NFD", character))
    latin = character < "\u0180" and base.isascii() and _OGONEK not in accents
    if (latin and character.isprintable()) or character in _SET_AS_IS:
        return character
    return f"[U+{ord(character):04X}]"
