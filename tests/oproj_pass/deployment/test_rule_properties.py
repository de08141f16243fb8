"""Every subset of violations is reported completely, in the table's order, and once."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.deployment import Deployment, Rule, check_deployment
from oproj_pass.deployment.check import JUDGES
from tests.oproj_pass.deployment.violations import VIOLATIONS

_ALSO = {11: {9}, 21: {9}}  # PCP is what all are about
_HIDES = {8: {13, 17}}  # nothing is captured, nothing is replayed
EXEMPT_AT_ONE = {7, 8, 9, 10, 13, 19, 22, 23}  # rule 14, and any width falls into one slice
NEED_THE_KNOB = set(VIOLATIONS) - {1, 6, 11, 16, 17, 18, 20, 21}


def _findings(valid, chosen, size):
    fields = copy.deepcopy(valid)
    fields["additional_config"]["finegrained_tp_config"]["oproj_tensor_parallel_size"] = size
    for rule in chosen:
        VIOLATIONS[rule](fields)
    return [finding.rule for finding in check_deployment(Deployment(**fields)).findings]


def _subsets(rules):
    """Subsets without two changes of one field."""
    return st.sets(st.sampled_from(sorted(rules))).filter(lambda chosen: not {8, 11} <= chosen)


def _expected(chosen):
    expected = set(chosen).union(*(_ALSO.get(rule, set()) for rule in chosen))
    return sorted(expected - {hidden for rule in chosen for hidden in _HIDES.get(rule, ())})


def test_every_rule_of_a_configuration_is_judged_and_violated_here():
    assert set(VIOLATIONS) == set(JUDGES) == set(Rule) - {Rule.ONE_IS_NO_SPLIT, Rule.FAILED_OFFLOAD}


@given(chosen=_subsets(VIOLATIONS))
def test_reports_exactly_the_violated_rules_in_order(valid_fields, chosen):
    assert _findings(valid_fields, chosen, size=8) == _expected(chosen)


@given(chosen=_subsets(VIOLATIONS))
def test_exempts_size_one_from_the_rules_of_a_real_split(valid_fields, chosen):
    # any number of ranks is a multiple of 1, so rule 3 holds as well
    expected = [rule for rule in _expected(chosen) if rule not in EXEMPT_AT_ONE | {3}]
    assert _findings(valid_fields, chosen, size=1) == expected


@given(chosen=_subsets(NEED_THE_KNOB))
def test_finds_nothing_when_the_knob_is_off(valid_fields, chosen):
    assert _findings(valid_fields, chosen, size=0) == []
