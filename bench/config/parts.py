"""What parts of the files that users write have in common, checked."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from bench.errors import require_known


class Part(BaseModel):
    """A part of a grid file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def one_of(kind: str, known: Collection[str]) -> AfterValidator:
    """A text that must be one of the known names."""

    def check(name: str) -> str:
        require_known(kind, [name], known)
        return name

    return AfterValidator(check)


def _round(value: Any) -> int | str:
    if value == "last" or (type(value) is int and value > 0):
        return value
    raise ValueError(f"A round must be a positive integer or last, but got {value!r}.")


Round = Annotated[int | Literal["last"], BeforeValidator(_round)]  # rounds beyond the end of a run are left out
