"""What parts of the files that users write have in common, checked."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model

from bench.errors import ConfigError, require_known, sentences


class Part(BaseModel):
    """A part of a grid file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def require_defaults(place: str, fields: Mapping[str, Any], config: ConfigDict | None = None) -> None:
    """Raises ConfigError with all defaults that are of another type than their options.

    Args:
        place: of the class, for messages.
        fields: name -> type and default, as `pydantic.create_model` takes them.
        config: how values are read.
    """
    read = ConfigDict(**{**(config or {}), "validate_default": True, "extra": "ignore"})
    try:
        create_model("Defaults", __config__=read, **fields)()
    except ValidationError as error:
        raise ConfigError(
            [f"{place}: the default of {line} Correct it, or the type." for line in sentences(error)]
        ) from error


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
