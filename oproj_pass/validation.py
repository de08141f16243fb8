"""What pydantic found wrong, in this project's words: the field, its value, and what is required of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

_REQUIRED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "callable_type": "a callable",
    "dict_type": "a mapping",
    "enum": "{expected}",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "is_instance_of": "a {class}",
    "literal_error": "{expected}",
    "missing": "all fields of it",
    "string_type": "text",
    "tuple_type": "a list",
}


def wrong_fields(error: ValidationError) -> Iterator[tuple[str, Any, str]]:
    """Each wrong field once: its name, its value, and what is required of it."""
    found: dict[str, tuple[Any, dict[str, None]]] = {}
    for item in error.errors():
        words = found.setdefault(_field(item["loc"]), (item["input"], {}))[1]
        words[_words(item)] = None
    for field, (value, words) in found.items():
        yield field, value, f"required: {' or '.join(words)}"


def _field(location: Sequence[int | str]) -> str:
    """The field's name, and which element of a list; what pydantic adds for a union's types is left out."""
    field, *places = location
    return f"{field}{''.join(f'[{place}]' for place in places if isinstance(place, int))}"


def _words(item: Mapping[str, Any]) -> str:
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    template = _REQUIRED.get(item["type"])
    return template.format(**item.get("ctx", {})) if template else str(item["msg"])
