"""What every rank needs, imported once in the process that the ranks are forked from."""

import vllm.entrypoints.llm
import vllm.model_executor.models.deepseek_v2
import vllm.model_executor.models.qwen3_moe
import vllm.v1.attention.backends.cpu_attn
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401

import examples.vllm_on_cpu  # noqa: F401
import oproj_pass.backend.entry  # noqa: F401
