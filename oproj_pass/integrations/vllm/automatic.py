"""Resolves a size of "auto" while the engine is configured, before anything else reads it as a number.

The largest of 8, 4 and 2 that fits; for output projections what the advisor makes of it where it knows the
machine. It follows from the configuration and the kind of device alone, so all ranks find the same.
"""

import logging
from typing import Any

from vllm.platforms import current_platform

from oproj_pass.advisor.automatic import advised_size, profile_named
from oproj_pass.advisor.sites import shape_in_config
from oproj_pass.automatic_sizes import AUTO_SIZES
from oproj_pass.deployment import Deployment
from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.knobs import Knob
from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.sizes import automatic_roles, without_others, write_sizes
from oproj_pass.passes.sites.options import size_option

logger = logging.getLogger(__name__)

_KNOBS = {str(knob): knob for knob in Knob}


def resolve_automatic(vllm_config: Any) -> None:
    """Write a number wherever a size of this plugin is "auto"."""
    roles = automatic_roles(vllm_config)
    if not roles:
        return
    own = {"additional_config": without_others(vllm_config.additional_config)}
    facts = Facts(Deployment.from_vllm(vllm_config).model_copy(update=own))
    sizes = {role: facts.largest_size(_KNOBS[size_option(role)]) for role in roles}
    if sizes.get("oproj", 1) > 1:
        sizes["oproj"] = _advised(vllm_config, facts, sizes["oproj"])
    for role, size in sizes.items():
        ranks = facts.deployment.data_parallel_size
        logger.info("%s = auto: %d (data_parallel_size %d)", size_option(role), size, ranks)
    write_sizes(vllm_config, sizes)


def _advised(vllm_config: Any, facts: Facts, largest: int) -> int:
    """What is worth it of the sizes that fit, up to the ``largest``; that one where nobody can tell."""
    profile = profile_named(str(current_platform.get_device_name()))
    model, deployment = vllm_config.model_config, facts.deployment
    layers = getattr(model.hf_text_config, "num_hidden_layers", None)
    out_features, in_features = deployment.hidden_size, deployment.oproj_input_size
    if profile is None or layers is None or out_features is None or in_features is None:
        return largest
    config = model.hf_config.to_dict()
    if model.quantization and not config.get("quantization_config"):
        return _without_advice(largest, f"the config does not state the quantisation {model.quantization!r}")
    try:
        shape = shape_in_config(config, model.dtype.itemsize, out_features, in_features, layers)
    except ConfigError as unknown:
        return _without_advice(largest, str(unknown))
    fitting = [size for size in AUTO_SIZES if size in facts.fitting_sizes(Knob.OPROJ)]
    return advised_size([shape], fitting, profile, facts.bound.max_decode_tokens)


def _without_advice(largest: int, why: str) -> int:
    logger.info("auto takes the largest size that fits, %d, without advice: %s", largest, why)
    return largest
