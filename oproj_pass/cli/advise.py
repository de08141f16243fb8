"""`oproj advise`: is sharding worth it for a model on a machine, over how many ranks, at what price."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from oproj_pass.cli.hf_model import config_fields
from oproj_pass.cli.output import Json, Status, finish, show, write_page
from oproj_pass.cli.traced import NoCache, trace
from oproj_pass.errors import ConfigError

EXAMPLE = "Example: oproj advise DeepSeek-V3/config.json --machine a2 --scheme w8a8 --batch 24"


def run(
    path: Annotated[
        Path, typer.Argument(exists=True, help="A config.json, or the model folder that holds it.")
    ],
    machine: Annotated[str, typer.Option(help="A profile by name, or a JSON file of your own.")],
    batch: Annotated[
        int, typer.Option(min=1, help="Tokens of a rank's step: requests, times 1 + drafts.")
    ] = 24,
    oproj_tensor_parallel_size: Annotated[
        list[int] | None, typer.Option(min=2, help="An N to look at; repeatable. By default 2, 4 and 8.")
    ] = None,
    scheme: Annotated[
        Literal["w8a8", "fp8", "fp8_block", "unquantised"] | None,
        typer.Option(help="How weights are stored; by default what the config's quantization_config says."),
    ] = None,
    framework: Annotated[
        Literal["vllm", "sglang"], typer.Option(help="Whose measured GEMM times apply.")
    ] = "vllm",
    cudagraph_capture_sizes: Annotated[
        str | None,
        typer.Option(metavar="1,2,4,..", help="Captured sizes; by default those `oproj plan` makes."),
    ] = None,
    sequence_length: Annotated[
        int, typer.Option(min=1, help="Tokens of a sequence, for how many fit.")
    ] = 4096,
    block_size: Annotated[int, typer.Option(min=1, help="vLLM's block_size.")] = 128,
    kv_cache_dtype: Annotated[
        Literal["16bit", "8bit"], typer.Option(help="Of the numbers in the KV cache.")
    ] = "16bit",
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(min=1, help="What vLLM is given today, to say what it can be given.")
    ] = None,
    max_slowdown_ms: Annotated[
        float, typer.Option(help="What a step may cost; by default the model's error on published points.")
    ] = 0.3,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write one self-contained page as well.")
    ] = None,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Say whether to shard a model's output projections on a machine, over how many ranks, and at what price.

    Needs the extra `hf`, no weights, no network and no device. Every figure says what it stands on.

    Exit status: 0 sharding is recommended, 1 it is not, 2 bad input.
    """
    from oproj_pass.advisor.profile import load_profile  # noqa: PLC0415 - refuses before anything slow loads

    profile = load_profile(machine)
    captured = _captured(cudagraph_capture_sizes, batch)
    fields = config_fields(path)
    from oproj_pass.advisor.advice import Setting  # noqa: PLC0415
    from oproj_pass.advisor.advise import advise  # noqa: PLC0415
    from oproj_pass.advisor.kv_cache import read_kv_cache  # noqa: PLC0415
    from oproj_pass.advisor.sites import SCHEMES, scheme_of  # noqa: PLC0415
    from oproj_pass.passes.sites.options import ROLE_TITLES, size_option  # noqa: PLC0415

    family = {size_option(role): "auto" for role in ROLE_TITLES}
    traced = trace(path, None, family, no_cache=no_cache)
    stored = scheme_of(fields) if scheme is None else SCHEMES.get(scheme)
    advice = advise(
        traced.report,
        profile,
        Setting(
            batch, captured, framework, sequence_length, block_size, max_slowdown_ms, kv_cache_memory_bytes
        ),
        sizes=oproj_tensor_parallel_size or (2, 4, 8),
        scheme=stored,
        cache=read_kv_cache(traced.facts, 1 if kv_cache_dtype == "8bit" else 2),
        draft_layers=fields.get("num_nextn_predict_layers") or 0,
    )
    if html is not None:
        from oproj_pass.advisor.page import to_html  # noqa: PLC0415

        write_page(html, to_html(advice))
    from oproj_pass.advisor.text import to_rich  # noqa: PLC0415

    show(advice.to_dict(), to_rich(advice), as_json=json)
    finish(Status.OK if advice.recommendation.option else Status.NO)


def _captured(sizes: str | None, batch: int) -> tuple[int, ...]:
    from oproj_pass.capture import StepBound, plan_capture  # noqa: PLC0415
    from oproj_pass.cli.plan import parse_sizes  # noqa: PLC0415

    if sizes is None:
        return plan_capture(StepBound(batch, batch)).sizes
    found = tuple(sorted(set(parse_sizes(sizes))))
    if found[0] < 1:
        raise ConfigError(f"--cudagraph-capture-sizes: {found[0]} is no size, required: 1 or more")
    return found
