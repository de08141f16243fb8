"""What each replica of a step brings to dispatch where DP and PCP meet, for a target and for its draft model.

A target's prefills are split over the ranks of PCP; a draft model runs whole on each of them, so it agrees on
counts of its own, in every replica, idle and decoding ones too (vllm-ascend#15969).
"""

import pytest

from oproj_pass.capture import ContextSplit, dispatch_size
from oproj_pass.capture.pcp import is_prefilling

# A request: tokens that it runs in this step, its prompt, tokens that it had computed before.
PROMPT, LATER_CHUNK, SHORT = (8, 8, 0), (9, 40, 16), (3, 3, 0)
DECODE, VERIFY, ARRIVAL, ONE_TOKEN_EARLIER = (1, 100, 120), (4, 100, 120), (4, 100, 99), (4, 100, 98)
IDLE = ()

STEPS = {
    "prefill beside idle": (2, [[PROMPT], IDLE], [4, 0], [8, 0]),
    "prefill beside decode": (2, [[PROMPT], [DECODE] * 3], [4, 3], [8, 3]),
    "mixed beside prefill": (2, [[DECODE, DECODE, PROMPT], [LATER_CHUNK]], [6, 6], [10, 9]),
    "drafts to verify": (2, [[VERIFY, VERIFY], [PROMPT]], [8, 4], [8, 8]),
    "an arrival is a decode": (2, [[ARRIVAL], [ONE_TOKEN_EARLIER]], [4, 2], [4, 4]),
    "shares add up by rank": (2, [[SHORT, LATER_CHUNK], [SHORT] * 2], [8, 4], [12, 6]),
    "four ranks": (4, [[LATER_CHUNK], [PROMPT], [SHORT], [DECODE]], [3, 2, 1, 1], [9, 8, 3, 1]),
    "one rank splits nothing": (1, [[PROMPT, DECODE], [SHORT]], [9, 3], [9, 3]),
    "all idle": (2, [IDLE, IDLE], [0, 0], [0, 0]),
}


def counts(pcp_size, requests):
    return dispatch_size(
        pcp_size,
        [scheduled for scheduled, _, _ in requests],
        [is_prefilling(prompt, computed) for _, prompt, computed in requests],
    )


@pytest.mark.parametrize(("pcp_size", "replicas", "target", "draft"), STEPS.values(), ids=STEPS)
def test_a_step_brings_its_vectors_to_dispatch(pcp_size, replicas, target, draft):
    assert [counts(pcp_size, requests) for requests in replicas] == target
    assert [counts(1, requests) for requests in replicas] == draft


@pytest.mark.parametrize(("pcp_size", "replicas", "target", "draft"), STEPS.values(), ids=STEPS)
def test_the_draft_gets_the_counts_back_that_the_split_restores(pcp_size, replicas, target, draft):
    """Rows of all ranks without padding, and each decode once: the global counts, which sampling needs."""
    for requests, local, whole in zip(replicas, target, draft, strict=True):
        prefills = tuple(n for n, prompt, computed in requests if is_prefilling(prompt, computed))
        decodes = sum(n for n, _, _ in requests) - sum(prefills)
        split = ContextSplit(pcp_size, prefills)
        assert decodes + split.local_total == local
        assert decodes + len(split.restore_indices()) == whole


def test_a_target_and_its_draft_may_be_padded_to_different_sizes():
    """The largest replica of one vector need not be that of the other: neither stands for both."""
    _, _, target, draft = STEPS["drafts to verify"]
    assert target.index(max(target)) == 0
    assert max(draft) == draft[1] == 8
    _, _, target, draft = STEPS["four ranks"]
    assert (max(target), max(draft)) == (3, 9)
