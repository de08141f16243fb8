import copy

import pytest

from oproj_pass.deployment import Deployment, check_deployment

_VALID = {
    "data_parallel_size": 8,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "num_attention_heads": 128,
    "head_dim": 128,
    "hidden_size": 7168,
    "is_moe": True,
    "additional_config": {
        "scheduler_config": {"recompute_scheduler_enable": True},
        "finegrained_tp_config": {"oproj_tensor_parallel_size": 8},
    },
    "kv_transfer_config": {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {
            "connectors": [
                {"kv_connector": "MooncakeConnectorV1", "kv_connector_extra_config": {}},
                {"kv_connector": "PreemptOffloadConnector"},
            ]
        },
    },
}


@pytest.fixture
def valid():
    """The fields of a decode node that keeps every rule; each test may change its copy."""
    return copy.deepcopy(_VALID)


@pytest.fixture(scope="session")
def valid_fields():
    """The same fields for property tests, which must copy before they change."""
    return copy.deepcopy(_VALID)


@pytest.fixture(scope="session")
def check():
    """Checks the valid decode node with some fields changed, `size` being the o_proj size."""

    def run(*, size=8, moot=(), **changes):
        fields = copy.deepcopy(_VALID) | changes
        if size != 8:
            fields["additional_config"]["finegrained_tp_config"]["oproj_tensor_parallel_size"] = size
        return check_deployment(Deployment(**fields), moot=moot)

    return run


@pytest.fixture(scope="session")
def sized():
    """The valid node's `additional_config` with other fine-grained sizes, and other keys."""
    config = _VALID["additional_config"]
    return lambda sizes, **others: copy.deepcopy(config) | {"finegrained_tp_config": sizes} | others


@pytest.fixture(scope="session")
def chain():
    """Builds a consumer's MultiConnector from child connectors."""

    def build(*children, role="kv_consumer"):
        return {
            "kv_connector": "MultiConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"connectors": list(children)},
        }

    return build
