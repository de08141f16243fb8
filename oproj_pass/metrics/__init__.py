"""What steps came to, as numbers: counted here, served to Prometheus by ``prometheus`` and by vLLM."""

from oproj_pass.metrics.counts import StepCounts
from oproj_pass.metrics.prometheus import export_metrics

__all__ = ["StepCounts", "export_metrics"]
