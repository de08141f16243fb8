"""The serving deployment and its rules: may it shard o_proj, and if not, why and what to change."""

from oproj_pass.deployment.check import check_deployment
from oproj_pass.deployment.findings import Finding, Severity
from oproj_pass.deployment.graph_mode import CUDAGraphMode
from oproj_pass.deployment.knobs import Knob
from oproj_pass.deployment.model import Deployment
from oproj_pass.deployment.preemption import PreemptionAction, PreemptionOutcome, PreemptionPolicy
from oproj_pass.deployment.report import DeploymentReport
from oproj_pass.deployment.rule import Rule

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
