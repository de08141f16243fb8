"""Builds a small engine on the CPU, and reads what a test wants to know of it."""

from pathlib import Path

COMPILED = {"mode": 2, "backend": "oproj_npu"}


def build_engine(model, *, size=0, compilation=None, capacity="auto", options=None, **arguments):
    """An ``LLM`` over the checkpoint; sharded over ``size`` ranks, eager without ``compilation``.

    ``size``: of the output projections, or by role.
    """
    from vllm import LLM

    from examples.vllm_on_cpu import prepare

    prepare()
    section = {**({"capacity": capacity} if capacity else {}), **(options or {})}
    sizes = size if isinstance(size, dict) else {"oproj": size}
    knobs = {f"{role}_tensor_parallel_size": number for role, number in sizes.items()}
    additional = {"finegrained_tp_config": knobs, "oproj_pass": section}
    settings = {
        "distributed_executor_backend": "uni",  # the worker lives in this process
        "dtype": "float32",
        "kv_cache_memory_bytes": 64 << 20,
        "max_model_len": 256,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 8,
        **arguments,
    }
    return LLM(
        model=str(model),
        additional_config=additional if size else {},
        compilation_config=compilation or {},
        enforce_eager=compilation is None,
        **settings,
    )


def greedy(llm, prompts, max_tokens=8):
    """The greedy tokens of prompts (token ids); without prompts, this rank runs along with its peers."""
    from vllm import SamplingParams

    lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
    parameters = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in lengths]
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    if not requests:
        _run_along(llm.llm_engine)
        return []
    return [list(out.outputs[0].token_ids) for out in llm.generate(requests, parameters, use_tqdm=False)]


def _run_along(engine):
    while engine.has_unfinished_requests():
        engine.step()


def model_of(llm):
    """The model inside the engine's only worker."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner.model


def take_the_slices_of(neighbour, llm, within=""):
    """Put another rank's slices of sharded weights in the place of this rank's; all ranks call it.

    ``within``: only of weights whose name has this part.
    """
    import torch
    import torch.distributed as dist

    for name, parameter in model_of(llm).named_parameters():
        if within in name and (shard := getattr(parameter, "shard", None)) is not None:
            mine = shard.tensor.contiguous().view(torch.uint8)
            everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, mine)
            shard.tensor.copy_(everyones[neighbour].view(shard.tensor.dtype))


def stop_compiling(llm):
    """Let the engine call the model's own forward from now on."""
    model_of(llm).model.do_not_compile = True


def stored_graph(llm):
    """Where vLLM would keep the compiled model on disk, and whether it does."""
    path = Path(model_of(llm).model._aot_compilation_path)
    return str(path), path.exists()


def output_projections(llm):
    """Each output projection's weight: its class name, full shape, bytes of its storage and of its shard."""
    return weights(llm, "o_proj.weight")


def weights(llm, *suffixes):
    """The same of every weight whose name ends in one of ``suffixes``."""
    found = {}
    for name, parameter in model_of(llm).named_parameters():
        if name.endswith(suffixes):
            shard = getattr(parameter, "shard", None)
            stored = parameter.untyped_storage().nbytes()
            found[name] = (type(parameter).__name__, tuple(parameter.shape), stored, shard and shard.nbytes)
    return found
