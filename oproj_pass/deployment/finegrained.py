"""Reads the fine-grained sizes of `additional_config` (rule 1).

Decides which sizes are usable and reports every one that is not. Whether a usable size fits the deployment is
for the other rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oproj_pass.deployment.names import near_misses, suggestion
from oproj_pass.deployment.report import Finding, Severity

__all__ = ["KNOB", "FineGrainedSizes", "read_sizes"]

KNOB = "oproj_tensor_parallel_size"
SIZES = (
    KNOB,
    "lmhead_tensor_parallel_size",
    "embedding_tensor_parallel_size",
    "mlp_tensor_parallel_size",
    "olora_tensor_parallel_size",
)
SECTION = "finegrained_tp_config"
_PATH = f"additional_config.{SECTION}"


@dataclass(frozen=True)
class FineGrainedSizes:
    """The usable sizes by name (an absent one is off), and a finding of rule 1 for every other entry."""

    sizes: Mapping[str, int]
    findings: tuple[Finding, ...]

    @property
    def oproj(self) -> int:
        """`oproj_tensor_parallel_size`: 0 is off, and stands for an unusable value too."""
        return self.sizes.get(KNOB, 0)

    @property
    def oproj_is_usable(self) -> bool:
        """Whether rule 1 holds for the o_proj size itself."""
        return not any(finding.field == f"{_PATH}.{KNOB}" for finding in self.findings)

    @property
    def active(self) -> dict[str, int]:
        """The sizes that are on, any knob."""
        return {name: size for name, size in self.sizes.items() if size > 0}


def read_sizes(additional_config: Mapping[str, Any]) -> FineGrainedSizes:
    """Return the sizes under `finegrained_tp_config`, with every unusable entry as a finding."""
    findings = _misplaced(additional_config)
    section = additional_config.get(SECTION, {})
    if not isinstance(section, Mapping):
        required = f"a mapping such as {{'{KNOB}': 8}}"
        findings.append(_finding(_PATH, section, required, "Write the sizes as key: value pairs."))
        return FineGrainedSizes({}, tuple(findings))
    sizes: dict[str, int] = {}
    for name, value in section.items():
        if name not in SIZES:
            required = f"one of {', '.join(SIZES)}"
            remedy = f"No such size{suggestion(str(name), SIZES)}. Remove or rename the key."
            findings.append(_finding(f"{_PATH}.{name}", value, required, remedy))
            continue
        parsed = _parse(value)
        if isinstance(parsed, int):
            sizes[name] = parsed
        else:
            findings.append(_finding(f"{_PATH}.{name}", value, *parsed))
    return FineGrainedSizes(sizes, tuple(findings))


def _misplaced(additional_config: Mapping[str, Any]) -> list[Finding]:
    """Keys beside the section that were meant to be it or in it: vllm-ascend ignores them in silence."""
    meant = {name: f"the key under {_PATH}" for name in SIZES if name in additional_config}
    for name, known in near_misses(additional_config, (SECTION, *SIZES)).items():
        meant[name] = f"the key {known!r}"
    return [
        _finding(f"additional_config.{name}", additional_config[name], required, "Move or rename the key.")
        for name, required in meant.items()
    ]


def _parse(value: Any) -> int | tuple[str, str]:
    """Return the size, or what is required and the remedy."""
    off_or_more = "an integer, 0 or more"
    if value is None:
        return off_or_more, "Nothing is not a size. Write 0 to switch it off, or remove the key."
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


def _finding(field: str, value: Any, required: str, remedy: str) -> Finding:
    return Finding(1, Severity.ERROR, field, value, required, remedy)
