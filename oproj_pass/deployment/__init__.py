"""The serving deployment and its rules: may it shard o_proj, and if not, why and what to change.

Names load on first use, for its readers of files are used where no deployment is.
"""

from typing import TYPE_CHECKING

from oproj_pass.first_use import names_on_first_use

if TYPE_CHECKING:
    from oproj_pass.deployment.check import check_deployment
    from oproj_pass.deployment.findings import Finding, Severity
    from oproj_pass.deployment.graph_mode import CUDAGraphMode
    from oproj_pass.deployment.knobs import Knob
    from oproj_pass.deployment.model import Deployment
    from oproj_pass.deployment.preemption import PreemptionAction, PreemptionOutcome, PreemptionPolicy
    from oproj_pass.deployment.report import DeploymentReport
    from oproj_pass.deployment.rule import Rule

_MODULES = {
    "CUDAGraphMode": "graph_mode",
    "Deployment": "model",
    "DeploymentReport": "report",
    "Finding": "findings",
    "Knob": "knobs",
    "PreemptionAction": "preemption",
    "PreemptionOutcome": "preemption",
    "PreemptionPolicy": "preemption",
    "Rule": "rule",
    "Severity": "findings",
    "check_deployment": "check",
}

__all__ = [
    "CUDAGraphMode",
    "Deployment",
    "DeploymentReport",
    "Finding",
    "Knob",
    "PreemptionAction",
    "PreemptionOutcome",
    "PreemptionPolicy",
    "Rule",
    "Severity",
    "check_deployment",
]

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
