"""Output projections that load this rank's slice only, so that the full copy never exists.

vLLM's own row-parallel machinery does it: while such a layer is built, the ranks that share the projection
stand in for the tensor-parallel group. So its weight loaders, its quantisation methods (scales with
``input_dim`` included) and its device formats all see a slice. Once the weights are loaded and processed,
each slice becomes the shard of a released parameter with the full shape, and the layer is an unsharded one
again: the graph shows one full projection, which the pass finds by dataflow and rewrites like any other.

Decides by path which layers load that way, conservatively: what it leaves out loads in full, and the backend
releases it when the graph is compiled. A layer that something else has cut already is refused.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import parallel_state
from vllm.model_executor.layers.linear import RowParallelLinear

from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup
from oproj_pass.integrations.vllm.hooks import wrap_constructions
from oproj_pass.integrations.vllm.orientation import dim_of_k
from oproj_pass.integrations.vllm.ranks import shard_group_of
from oproj_pass.integrations.vllm.settings import Settings, settings_of_model
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import ReleasedParameter, adopt

# Attention's output projection in vLLM's models; an unlisted name only loses the sharded load.
_OUTPUT_PROJECTION = re.compile(r"(?<!linear_)(attn|attention)\.(o_proj|out_proj|c_proj|dense|wo)$")


class _Ranks:
    """The ranks that share a projection, in the part of vLLM's tensor-parallel group that layers ask."""

    def __init__(self, group: ShardGroup) -> None:
        self.world_size, self.rank_in_group = group.size, group.rank


def install() -> None:
    """Wrap the layer's construction, and that of its subclasses: vllm-ascend's comes with the worker."""
    wrap_constructions(RowParallelLinear, _constructing)


def _constructing(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        group = _group_of(arguments.get("prefix", ""), bool(arguments.get("disable_tp")))
        if group is None:
            original(self, *args, **kwargs)
            _require_shared_once(self)
            return
        with _as_tensor_parallel_group(group):
            original(self, *args, **kwargs)
        if getattr(self, "custom_op", None) is not None:
            self.custom_op = None  # vllm-ascend's own exchange, which would come on top
        _adopt_when_processed(self, group)

    return __init__


def _group_of(prefix: str, disable_tp: bool) -> ShardGroup | None:
    """The ranks that share the layer ``prefix``, None for a layer that loads in full."""
    settings = _settings()
    if settings is None or not settings.load_sharded or disable_tp:
        return None
    return shard_group_of(settings) if _OUTPUT_PROJECTION.search(prefix) else None


def _settings() -> Settings | None:
    """The settings for the model that is being built, None where its output projections are not shared."""
    if isinstance(parallel_state._TP, _Ranks):  # a subclass is being built, and this is its base
        return None
    settings = settings_of_model(get_current_vllm_config_or_none())
    return None if settings is None or settings.sizes["oproj"] < 2 else settings


def _require_shared_once(layer: Any) -> None:
    """Raise ``ConfigError`` for a projection that loads in full and that vllm-ascend shares by itself.

    vllm-ascend reads the same size, and gives each layer named ``o_proj`` an exchange of its own, over its
    own group: the graph would hold a rank's part of the weight and take it for the whole.
    """
    custom_op = getattr(layer, "custom_op", None)
    if custom_op is None or _settings() is None or not layer.prefix.endswith(".o_proj"):
        return
    groups = import_module("vllm_ascend.distributed.parallel_state")
    if custom_op.comm_group is groups.get_otp_group():
        raise ConfigError(
            f"{layer.prefix}: vllm-ascend shares this projection by itself ({type(custom_op).__name__}), and "
            "the plugin would share it once more: wrong values on every rank. Leave "
            "additional_config.oproj_pass.load_sharded true, which takes vllm-ascend's exchange out of every "
            "attention's output projection, or take the plugin's section and backend out."
        )


@contextmanager
def _as_tensor_parallel_group(group: ShardGroup) -> Iterator[None]:
    with patch.object(parallel_state, "_TP", _Ranks(group)):
        yield


def _adopt_when_processed(layer: Any, group: ShardGroup) -> None:
    """Adopt the layer's slices as soon as its quantisation method has processed them."""
    dims = {
        name: parameter.input_dim
        for name, parameter in layer.named_parameters(recurse=False)
        if getattr(parameter, "input_dim", None) is not None
    }
    process = layer.quant_method.process_weights_after_loading

    @functools.wraps(process)
    def process_weights_after_loading(processed: Any) -> None:
        if processed is not layer:
            process(processed)
            return
        loaded = {name: _plain(getattr(layer, name)) for name in dims}
        process(layer)
        for name, dim in dims.items():
            _adopt(layer, name, dim, loaded[name], group)
        layer.tp_rank, layer.tp_size = 0, 1
        layer.input_size_per_partition = layer.input_size

    layer.quant_method.process_weights_after_loading = process_weights_after_loading


def _adopt(layer: Any, name: str, input_dim: int, loaded: Tensor, group: ShardGroup) -> None:
    path, method = f"{layer.prefix}.{name}", type(layer.quant_method).__name__
    parameter = getattr(layer, name, None)
    if isinstance(parameter, ReleasedParameter):  # weights were loaded again, into the shard
        return
    if layer.tp_size == 1:
        raise ConfigError(
            f"{path}: new weights were loaded into another tensor than the shard that compiled graphs read. "
            "Set additional_config.oproj_pass.load_sharded to false, and restart the engine."
        )
    if parameter is None:
        raise ConfigError(
            f"{path}: {method} took the loaded slice away, into a kernel's own packing that no graph shows, "
            "so ranks cannot share it. Serve it with a kernel that keeps its weight, or set "
            "oproj_tensor_parallel_size to 0."
        )
    slice_ = _plain(parameter)
    dim = dim_of_k(loaded, slice_, input_dim)
    if dim is None:
        raise ConfigError(
            f"{path}: {method} turned the loaded slice of shape {tuple(loaded.shape)} into "
            f"{tuple(slice_.shape)}, in which K's {group.size} parts cannot be told apart. Set "
            "additional_config.oproj_pass.load_sharded to false, which loads it in full."
        )
    shape = [size * group.size if index == dim else size for index, size in enumerate(slice_.shape)]
    setattr(layer, name, adopt(slice_, Placement.split(dim, group), path, shape))


def _plain(parameter: Tensor) -> Tensor:
    """The parameter's tensor without its class, over the same storage."""
    with DisableTorchFunctionSubclass():
        return parameter.detach()
