"""Reads the fine-grained sizes of `additional_config` (rule 1).

Decides which sizes are usable and reports every one that is not. Whether a usable size fits the deployment is
for the other rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.deployment.findings import Finding, error
from oproj_pass.deployment.knobs import BUILT, Knob
from oproj_pass.deployment.names import near_misses, suggestion
from oproj_pass.deployment.rule import Rule

__all__ = ["SECTION", "FineGrainedSizes", "read_sizes", "set_sizes"]

SECTION = "finegrained_tp_config"
_KNOBS: dict[Any, Knob] = {knob.value: knob for knob in Knob}
_PATH = Rule.USABLE_SIZES.field


@dataclass
class FineGrainedSizes:
    """The usable sizes (an absent one is off), the knobs without one, and rule 1's findings.

    ``automatic``: the knobs that leave their size to this project.
    """

    sizes: dict[Knob, int] = field(default_factory=dict)
    unusable: list[Knob] = field(default_factory=list)
    automatic: list[Knob] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def active(self) -> dict[Knob, int]:
        """The sizes that are on."""
        return {knob: size for knob, size in self.sizes.items() if size > 0}


def set_sizes(sizes: Mapping[Knob, int]) -> dict[str, Any]:
    """The part of a deployment that sets these sizes."""
    return {"additional_config": {SECTION: {str(knob): size for knob, size in sizes.items()}}}


def read_sizes(additional_config: Mapping[str, Any]) -> FineGrainedSizes:
    """Return the sizes under `finegrained_tp_config`, with every unusable entry as a finding."""
    read = FineGrainedSizes(findings=_misplaced(additional_config))
    section = additional_config.get(SECTION, {})
    if not isinstance(section, Mapping):
        required = f"a mapping such as {{'{Knob.OPROJ}': 8}}"
        remedy, nothing = "Write the sizes as key: value pairs.", set_sizes({})
        read.findings.append(_finding(_PATH, section, required, remedy, nothing))
        return read
    for name, value in section.items():
        knob = _KNOBS.get(name)
        if knob is None:
            required = f"one of {', '.join(_KNOBS)}"
            remedy = f"No such size{suggestion(str(name), _KNOBS)}. Remove or rename the key."
            read.findings.append(_finding(f"{_PATH}.{name}", value, required, remedy))
            continue
        if value == AUTO and knob in BUILT:
            read.automatic.append(knob)
            continue
        parsed = _parse(value)
        if isinstance(parsed, int):
            read.sizes[knob] = parsed
        else:
            read.unusable.append(knob)
            read.findings.append(_finding(f"{_PATH}.{name}", value, *parsed, change=set_sizes({knob: 0})))
    return read


def _misplaced(additional_config: Mapping[str, Any]) -> list[Finding]:
    """Keys beside the section that were meant to be it or in it: vllm-ascend ignores them in silence."""
    meant = {name: f"the key under {_PATH}" for name in _KNOBS if name in additional_config}
    for name, known in near_misses(additional_config, (SECTION, *_KNOBS)).items():
        meant[name] = f"the key {known!r}"
    return [
        _finding(f"additional_config.{name}", additional_config[name], required, "Move or rename the key.")
        for name, required in meant.items()
    ]


def _parse(value: Any) -> int | tuple[str, str]:
    """Return the size, or what is required and the remedy."""
    off_or_more = "an integer, 0 or more"
    if value is None:
        return 0
    if isinstance(value, bool):
        return off_or_more, "A boolean does not say how many ranks. Write the group size, or 0 for off."
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return off_or_more, "The text is not a whole number. Write the group size, such as 8."
    if isinstance(value, float):
        if not value.is_integer():
            return off_or_more, "A group has a whole number of ranks. Write the group size, such as 8."
        value = int(value)
    if not isinstance(value, int):
        return off_or_more, f"A {type(value).__name__} is not a size. Write the group size, such as 8."
    if value < 0:
        return off_or_more, "A negative size has no meaning. Write 0 to switch it off."
    return value


def _finding(
    path: str, value: Any, required: str, remedy: str, change: Mapping[str, Any] | None = None
) -> Finding:
    return error(Rule.USABLE_SIZES, value, required, remedy, field=path, change=change)
