"""What a check found: findings in the rules' order, and what is left of the sizes after them.

Holds facts; how they look is `render`'s, and `report` has both.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from oproj_pass.deployment.graph_mode import CUDAGraphMode
from oproj_pass.deployment.knobs import Knob
from oproj_pass.deployment.rule import Rule
from oproj_pass.errors import ConfigError

__all__ = ["Finding", "Findings", "Severity", "error", "merged", "warning"]


class Severity(enum.Enum):
    """ERROR refuses the start; WARNING lets it go on."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One violated rule: the field at fault, its value, what is required and what to do about it.

    `change` is the remedy as a part of the deployment, to be merged into it, in vLLM's spelling; None where
    the remedy is not a setting of this deployment.
    """

    rule: Rule
    severity: Severity
    field: str
    value: Any
    required: str
    remedy: str
    change: Mapping[str, Any] | None = None

    @property
    def message(self) -> str:
        """The finding as one line of text."""
        return f"rule {self.rule}: {self.field} is {self.value!r}, required: {self.required}. {self.remedy}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values."""
        value = (
            self.value if isinstance(self.value, (str, int, float, bool, type(None))) else repr(self.value)
        )
        return {
            "rule": self.rule.value,
            "severity": self.severity.value,
            "field": self.field,
            "value": value,
            "required": self.required,
            "remedy": self.remedy,
            "change": self.change,
        }


def _finding(
    severity: Severity,
    rule: Rule,
    value: Any,
    required: str,
    remedy: str,
    *,
    field: str | None = None,
    change: Mapping[str, Any] | None = None,
) -> Finding:
    """A finding; its field is the rule's unless another is named."""
    return Finding(rule, severity, field or rule.field, value, required, remedy, change)


error = partial(_finding, Severity.ERROR)
"""A finding that refuses the start."""

warning = partial(_finding, Severity.WARNING)
"""A finding that lets the start go on."""


def merged(fields: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with a change in them: mappings are merged, anything else is replaced."""
    found = dict(fields)
    for name, value in change.items():
        inner = found.get(name)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        found[name] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return found


@dataclass(frozen=True, repr=False)
class Findings:
    """Every finding of one check, and what follows from them (see `DeploymentReport`)."""

    findings: tuple[Finding, ...]
    sizes: Mapping[Knob, int]
    cudagraph_mode: CUDAGraphMode
    not_judged: tuple[str, ...] = ()

    @property
    def oproj_tensor_parallel_size(self) -> int:
        """N of o_proj that will run; 0 is off."""
        return self.sizes.get(Knob.OPROJ, 0)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that refuse the start."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that let the start go on."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    @property
    def change(self) -> Mapping[str, Any]:
        """All remedies as one part of the deployment, which mends every finding once it is merged into it."""
        return reduce(merged, (finding.change or {} for finding in self.findings), {})

    @property
    def ok(self) -> bool:
        """Whether the deployment may start."""
        return not self.errors

    def raise_if_errors(self) -> None:
        """Raise one ConfigError that lists every error; warnings pass."""
        if self.errors:
            lines = "\n".join(f"  - {finding.message}" for finding in self.errors)
            raise ConfigError(f"{len(self.errors)} deployment rule(s) violated:\n{lines}")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "ok": self.ok,
            "oproj_tensor_parallel_size": self.oproj_tensor_parallel_size,
            "sizes": {str(knob): size for knob, size in self.sizes.items()},
            "cudagraph_mode": self.cudagraph_mode.name,
            "findings": [finding.to_dict() for finding in self.findings],
            "change": self.change,
            "not_judged": list(self.not_judged),
        }
