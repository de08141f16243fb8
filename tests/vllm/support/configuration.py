"""Facts of vLLM configurations with the plugin, on a platform with graphs; runs in its own process."""

import logging
import os
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

EXAMPLE_CONNECTOR = (
    "vllm.distributed.kv_transfer.kv_connector.v1.example_connector",
    "ExampleConnector",
)
CONNECTORS = ["ExampleConnector", "PreemptOffloadConnector"]
DECODE_NODE = {
    "data_parallel_size": 4,
    "dtype": "float32",
    "enable_expert_parallel": True,
    "load_format": "dummy",
    "max_model_len": 256,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 16,
    "compilation_config": {"mode": 2, "backend": "oproj_npu", "cudagraph_mode": "FULL_DECODE_ONLY"},
    "kv_transfer_config": {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {
            "connectors": [{"kv_connector": name, "kv_role": "kv_consumer"} for name in CONNECTORS]
        },
    },
}

HEAD = {"lmhead_tensor_parallel_size": 2}
EVERY_SIZE = HEAD | {
    "oproj_tensor_parallel_size": 2, "mlp_tensor_parallel_size": 4, "embedding_tensor_parallel_size": 2,
}  # fmt: skip


def start():
    """Load vLLM with the configuration platform, and its general plugins."""
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    from scripts.vllm_config_platform import use

    use()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "PreemptOffloadConnector" not in KVConnectorFactory._registry:  # vllm-ascend's, by name alone
        KVConnectorFactory.register_connector("PreemptOffloadConnector", *EXAMPLE_CONNECTOR)


def build(model, size, section=None, **changes):
    """The VllmConfig of a decode node with the knob at ``size``, or with the sizes of that mapping."""
    from vllm.engine.arg_utils import EngineArgs

    additional = {"scheduler_config": {"recompute_scheduler_enable": True}}
    if size is not None:
        sizes = size if isinstance(size, dict) else {"oproj_tensor_parallel_size": size}
        additional["finegrained_tp_config"] = sizes
    if section is not None:
        additional["oproj_pass"] = section
    arguments = {**DECODE_NODE, "additional_config": additional, **changes}
    return EngineArgs(model=str(model), **arguments).create_engine_config()


def outcome(model, size, section=None, **changes):
    """What became of a configuration: an error's text, or the settings and the additional configuration."""
    from oproj_pass.integrations.vllm import settings_of

    try:
        config = build(model, size, section, **changes)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "settings": settings_of(config),
        "additional": config.additional_config,
        "key": config.compute_hash(),
    }


def with_platform_hook(change, model, size):
    """The outcome on a platform whose hook does ``change`` to the configuration after its own work."""
    from vllm.platforms import current_platform

    from oproj_pass.integrations.vllm import rules
    from oproj_pass.integrations.vllm.hooks import wrap

    def check_and_update_config(cls, vllm_config):
        change(vllm_config)

    platform = type(current_platform)
    with patch.object(platform, "check_and_update_config", classmethod(check_and_update_config)):
        wrap(platform, "check_and_update_config", rules._checked)
        return outcome(model, size)


@contextmanager
def on_a_known_machine(name):
    """As if the platform's device were in a profile, with exchanges that take long; its choice is logged."""
    from oproj_pass.advisor.profile import load_profile
    from oproj_pass.integrations.vllm import automatic

    profile = load_profile(name)
    links = {"base_us": {"value": 1e5, "basis": "assumed", "source": "made up, so that every step is slower"}}
    slow = profile.model_copy(update={"link": profile.link.model_validate(profile.link.model_dump() | links)})
    logger = logging.getLogger("oproj_pass")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with patch.object(automatic, "profile_named", lambda device: slow):
            yield
    finally:
        logger.setLevel(level)


def drop_compilation(vllm_config):
    """What vllm-ascend 0.23 does to a mode that it does not know."""
    from vllm.config import CompilationMode, CUDAGraphMode

    vllm_config.compilation_config.mode = CompilationMode.NONE
    vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


def drop_graphs(vllm_config):
    """A platform without graphs."""
    from vllm.config import CUDAGraphMode

    vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


class Records(logging.Handler):
    """The messages logged by this project."""

    def __init__(self):
        super().__init__()
        self.messages = []
        logging.getLogger("oproj_pass").addHandler(self)

    def emit(self, record):
        self.messages.append(record.getMessage())

    def take(self):
        taken, self.messages = self.messages, []
        return taken


def rule_facts(model):
    """Outcomes by name; ``logged`` of those where it matters."""
    start()
    records = Records()
    facts = {
        "decode node": outcome(model, 2),
        "no knob": outcome(model, None),
        "knob 0": outcome(model, 0),
        "knob null": outcome(model, {"oproj_tensor_parallel_size": None, "mlp_tensor_parallel_size": 0}),
        "a size that is not built": outcome(model, {"olora_tensor_parallel_size": 2}),
        "lmhead, eager, no kv transfer": outcome(model, HEAD, kv_transfer_config=None, enforce_eager=True),
        "lmhead, drafts of a model": outcome(
            model,
            HEAD,
            speculative_config={"method": "draft_model", "model": str(model), "num_speculative_tokens": 1},
        ),
        "a misspelled knob": outcome(model, {"o_proj_tensor_parallel_size": 2}),
        "no kv transfer, tp 2": outcome(model, 2, kv_transfer_config=None, tensor_parallel_size=2),
        "not a size": outcome(model, "two"),
        "unknown option": outcome(model, 2, {"capcity": 512}),
        "small capacity": outcome(model, 2, {"capacity": 512}),
        "capacity, no kv transfer": outcome(model, 2, {"capacity": "auto"}, kv_transfer_config=None),
        "eager": outcome(model, 2, enforce_eager=True),
        "adapters": outcome(model, 2, enable_lora=True),
        "adapters, knob 0": outcome(model, 0, enable_lora=True),
        "compilation dropped": with_platform_hook(drop_compilation, model, 2),
        "graphs dropped": with_platform_hook(drop_graphs, model, 2),
    }
    with patch.dict(os.environ, VLLM_USE_V2_MODEL_RUNNER="1"):
        facts["lmhead, runner V2"] = outcome(model, HEAD)
    facts["logged before"] = records.take()
    facts["every size"] = outcome(model, EVERY_SIZE)
    facts["logged with every size"] = records.take()
    facts["auto"] = outcome(model, "auto")
    facts["logged with auto"] = records.take()
    with on_a_known_machine("a2"):
        facts["auto on a2"] = outcome(model, {"oproj_tensor_parallel_size": "auto"})
    facts["logged with auto on a2"] = records.take()
    facts["uncovered"] = outcome(model, EVERY_SIZE, max_num_seqs=600)
    facts["logged when uncovered"] = records.take()
    keys = {
        "n2": outcome(model, 2), "n4": outcome(model, 4), "n2 again": outcome(model, 2),
        "capacity 8192": outcome(model, 2, {"capacity": 8192}),
        "capacity 8200": outcome(model, 2, {"capacity": 8200}),
    }  # fmt: skip
    from oproj_pass.passes import ShardOProj

    with patch.object(ShardOProj, "name", "another_pass"):
        keys["another pass"] = outcome(model, 2)
    facts["keys"] = {name: found.get("key", found) for name, found in keys.items()}
    return facts


class _HeadWorker:
    """A worker whose model returns the rows that its LM head was called with."""

    def __init__(self, computes_logits=True):
        self.model, self.calls = SimpleNamespace(), []
        if computes_logits:
            self.model.compute_logits = lambda rows: self.calls.append(rows.clone()) or rows * 2

    def load_model(self):
        pass

    def get_model(self):
        return self.model

    def execute_dummy_batch(self):
        pass

    def initialize_from_config(self, kv_cache_config):
        pass


def head_facts(model):
    """What the LM head of a worker is called with, on a busy and on an idle rank; and what is refused."""
    start()
    import torch

    from oproj_pass.integrations.vllm import settings_of
    from oproj_pass.integrations.vllm.head import SharedHead, _share_head

    settings = settings_of(build(model, HEAD, max_num_seqs=4, kv_transfer_config=None, enforce_eager=True))

    def refusal(function, *args):
        try:
            function(*args)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def serving(worker):
        _share_head(worker, SharedHead(settings))
        worker.load_model()
        return worker

    with (
        patch("oproj_pass.integrations.vllm.head.head_options_of", lambda settings: {}),
        patch("torch.compile", lambda function, **_: function),
    ):
        worker, silent = serving(_HeadWorker()), serving(_HeadWorker())
        facts = {"no logits": refusal(serving, _HeadWorker(computes_logits=False))}
    facts["never called"] = refusal(silent.initialize_from_config, None)
    facts["three rows"] = worker.model.compute_logits(torch.ones(3, 2)).tolist()
    worker.initialize_from_config(None)
    worker.execute_dummy_batch()
    facts["called with"] = [rows.tolist() for rows in worker.calls]
    facts["five rows"] = refusal(worker.model.compute_logits, torch.ones(5, 2))
    return facts


def hook_facts():
    """What each hook is before and after the plugin is registered again."""
    start()
    from vllm.config import CompilationConfig
    from vllm.model_executor.layers.linear import RowParallelLinear
    from vllm.platforms import current_platform
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from oproj_pass.integrations.vllm import register

    def hooks():
        platform = type(current_platform)
        return [
            vars(platform)["check_and_update_config"],
            vars(platform)["set_additional_forward_context"],
            RowParallelLinear.__init__,
            CompilationConfig.init_backend,
            WorkerWrapperBase.execute_model,
            WorkerWrapperBase.init_device,
            InputProcessor.process_inputs,
            Scheduler.__init__,
        ]

    first = hooks()
    register()
    wrapped = [hasattr(getattr(hook, "__func__", hook), "__wrapped__") for hook in first]
    return {"wrapped": wrapped, "same": [a is b for a, b in zip(first, hooks(), strict=True)]}


class _Worker:
    """Runs, as a worker's step, one forward for each mode it is given."""

    def __init__(self, config):
        self.config = config

    def execute_model(self, scheduler_output):
        for mode, descriptor, num_tokens in scheduler_output.forwards:
            _forward(self.config, mode, descriptor, num_tokens)
        return "ran"


class _Step:
    def __init__(self, *forwards):
        self.forwards = forwards
        self.total_num_scheduled_tokens = sum(num_tokens for *_, num_tokens in forwards)


def _forward(config, mode, descriptor, num_tokens, attn_metadata="metadata"):
    import torch
    from vllm.forward_context import set_forward_context

    across = torch.full((4,), num_tokens, dtype=torch.int32)
    with set_forward_context(
        attn_metadata, config, num_tokens=num_tokens, num_tokens_across_dp=across,
        cudagraph_runtime_mode=mode, batch_descriptor=descriptor,
    ):  # fmt: skip
        pass


def guard_facts(model):
    """What the guard says of steps that vLLM's own dispatchers sent to a graph or to none."""
    start()
    from vllm.config import CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    config = build(model, 2)
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(config.compilation_config.cudagraph_mode, 1)

    wrapper = WorkerWrapperBase.__new__(WorkerWrapperBase)
    wrapper.worker, wrapper.mm_receiver_cache = _Worker(config), None

    def step(*forwards):
        with patch.object(WorkerWrapperBase, "_apply_mm_cache", lambda *_: None):
            try:
                return wrapper.execute_model(_Step(*forwards))
            except Exception as error:
                return f"{type(error).__name__}: {error}"

    def dispatched(num_tokens, uniform):
        return (*dispatcher.dispatch(num_tokens, uniform_decode=uniform), num_tokens)

    decode, oversize, mixed = dispatched(16, True), dispatched(600, True), dispatched(16, False)
    facts = {
        "decode": (decode[0].name, step(decode)),
        "oversize": (oversize[0].name, step(oversize)),
        "mixed": (mixed[0].name, step(mixed)),
        "draft after decode": ("NONE", step(decode, (CUDAGraphMode.NONE, None, 16))),
        "step after a refusal": (decode[0].name, step(decode)),
    }
    for name, metadata in (("profile run", None), ("capture warm-up", "metadata")):
        try:
            _forward(config, CUDAGraphMode.NONE, None, 8192, metadata)
            facts[name] = ("NONE", "ran")
        except Exception as error:
            facts[name] = ("NONE", f"{type(error).__name__}: {error}")
    for name, size, section in (("knob 0", 0, None), ("capacity", 2, {"capacity": "auto"})):
        wrapper.worker.config = build(model, size, section)
        facts[f"oversize, {name}"] = ("NONE", step(oversize))
    return facts | {"second runner": _second_runner(config, step, wrapper)}


def _second_runner(config, step, wrapper):
    """The same of the second model runner's dispatcher: decode, oversize and mixed steps."""
    import types

    import torch
    import vllm.v1.worker.gpu.cudagraph_utils as utilities

    utilities.get_pp_group = lambda: types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
    manager = utilities.CudaGraphManager(
        config, torch.device("cpu"), config.compilation_config.cudagraph_mode, 1
    )
    manager._graphs_captured = True
    wrapper.worker.config = config
    steps = {"decode": (16, 16, 1, 1), "oversize": (600, 600, 1, 1), "mixed": (2, 16, None, 15)}
    found = {}
    for name, (requests, tokens, uniform, longest) in steps.items():
        mode = manager.dispatch(requests, tokens, uniform, 0, longest).cg_mode
        found[name] = (mode.name, step((mode, None, tokens)))
    return found
