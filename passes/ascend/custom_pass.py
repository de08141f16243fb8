"""``npu_pass``: the sharding as a ``post_grad_custom_pre_pass`` of torchair or npugraph_ex.

Decides the form of the function that is handed over. npugraph_ex's compile cache tells passes apart by the
disassembly of their code, so closures, partials and objects with different settings would share one cache
entry, and functions with nested code get a new one in every process. Hence each configuration becomes a plain
function of its own, written as source text with every setting as a literal. What it does is ``shard``'s.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, TypeVar, get_args

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.fx import GraphModule

from oproj_pass.errors import ConfigError
from oproj_pass.passes.ascend.settings import Settings
from oproj_pass.passes.ascend.shard import shard
from oproj_pass.passes.strategies.exchange import Reduce

_Name = TypeVar("_Name", bound=str)
CustomPass = Callable[[GraphModule, Sequence[Any], Any], None]

_STRATEGIES = ("row", "column", "group")
_SOURCE = "def shard_oproj(gm, example_inputs, config):\n    shard(gm, example_inputs, {settings!r})\n"


def npu_pass(
    group: ProcessGroup | None = None,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    attention_ops: Sequence[str] = (),
    expected_sites: int | None = None,
    reduce_dtype: torch.dtype | None = None,
    strategy: str | None = None,
    reduce: Reduce = "scatter",
) -> CustomPass:
    """A pass ``(gm, example_inputs, config) -> None`` that shards each graph it is given, in place.

    ``group``: the ranks that share each projection, by default the whole world (``dist.new_subgroups(n)``
    makes consecutive groups of n). It must exist before this call, and, where a compile cache is used, be
    made in the same order in every run: graphs name it. The other options are ``OProjConfig``'s; a
    ``strategy`` has no grid here, whose groups the backend makes. A weight is cut inside the graph, unless
    it already is this rank's slice (``WeightShard``).

    Raises ``ConfigError`` for a setting that cannot work; the pass raises it, or ``SiteMismatchError``, for a
    graph that does not fit.
    """
    members = _member(group)
    settings = Settings(
        version=version("oproj-pass"),
        group_name=members.group_name,
        ranks=tuple(dist.get_process_group_ranks(members)),
        rank=members.rank(),
        include=_strings("include", include),
        exclude=_strings("exclude", exclude),
        attention_ops=_qualified(_strings("attention_ops", attention_ops)),
        expected_sites=expected_sites,
        reduce_dtype=_summable(reduce_dtype),
        strategy=None if strategy is None else _one_of("strategy", strategy, _STRATEGIES),
        reduce=_one_of("reduce", reduce, get_args(Reduce)),
    )
    return function_of(settings)


def function_of(settings: Settings) -> CustomPass:
    """The pass with these settings; equal settings give equal code, in every process, and no others do."""
    namespace: dict[str, Any] = {"shard": shard, "Settings": Settings}
    exec(compile(_SOURCE.format(settings=settings), "<oproj_pass.passes.npu_pass>", "exec"), namespace)
    return namespace["shard_oproj"]  # type: ignore[no-any-return]


def _member(group: ProcessGroup | None) -> ProcessGroup:
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "npu_pass needs a process group, and torch.distributed is not initialised: call "
            "torch.distributed.init_process_group before npu_pass."
        )
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, ProcessGroup):
        raise ConfigError(
            f"npu_pass: group must be a process group that holds rank {dist.get_rank()}, got {chosen!r}. "
            "Give each rank its own group (torch.distributed.new_subgroups returns it first)."
        )
    return chosen


def _strings(name: str, value: Sequence[str]) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else tuple(value)
    for item in values:
        if not isinstance(item, str):
            raise ConfigError(f"npu_pass: {name} takes strings, got {item!r}")
    return values


def _one_of(name: str, value: _Name, known: Sequence[_Name]) -> _Name:
    if value not in known:
        raise ConfigError(f"npu_pass: {name} takes one of {', '.join(known)}, got {value!r}")
    return value


def _qualified(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name.count("::") != 1:
            raise ConfigError(
                "npu_pass: attention_ops takes qualified operator names such as 'npu::npu_ring_mla', got "
                f"{name!r}"
            )
    return names


def _summable(dtype: torch.dtype | None) -> str | None:
    if dtype is None:
        return None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ConfigError(
            f"npu_pass: reduce_dtype = {dtype!r}; required: float16, bfloat16 or float32, the types HCCL sums"
        )
    return str(dtype).removeprefix("torch.")
