"""An error that nothing in a run can cause is a finding."""

from dataclasses import replace

import pytest
from headrace.wire.errors import ErrorCode

from tests.simulation.client_errors import CAUSES, NEVER, why_not
from tests.simulation.plan import Plan

QUIET = Plan(1, faults=("kill", "power"))


@pytest.mark.parametrize("code", [*CAUSES, *NEVER])
def test_what_nothing_in_a_run_can_cause_is_told(code):
    assert why_not(code, QUIET) != ""


@pytest.mark.parametrize(
    ("code", "plan"),
    [
        (ErrorCode.CORRUPT_BATCH, replace(QUIET, faults=("corruption",))),
        (ErrorCode.UNKNOWN_TOPIC, replace(QUIET, faults=("topic made anew",))),
        (ErrorCode.UNKNOWN_TOPIC_ID, replace(QUIET, buggy_etcd=True)),
        (ErrorCode.READ_ONLY_TOPIC, QUIET.with_mirror()),
        (ErrorCode.TIMED_OUT, QUIET),
    ],
)
def test_what_a_fault_causes_is_allowed(code, plan):
    assert why_not(code, plan) == ""
