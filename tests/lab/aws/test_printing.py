"""The printed account of a rehearsal names what a reader needs, within 100 columns."""

from __future__ import annotations

from dataclasses import replace

from lab.aws.moto_models import Outcome
from lab.aws.printing import account_lines, in_one_line
from lab.aws.rehearsal import Rehearsal
from lab.aws.surroundings import Remains


def test_the_account_of_three_stacks_names_all_that_a_reader_needs(rehearsal: Rehearsal) -> None:
    text = "\n".join(account_lines(rehearsal))
    for wanted in (
        "Rehearsal of 3 stacks in us-east-2",
        "created   5, recorded   1, not modelled   1",
        "trainium: Kubernetes 1.35, public for 203.0.113.0/24, private",
        "trn2: trn2.48xlarge, desired 0 (0 to 1), 16 network interfaces, taint",
        "aws.amazon.com/neuron=true:NO_SCHEDULE, label example.com/Accelerator=trn2",
        "results-of-runs",
        "4 objects, recorded: 2 ConfigMap, 1 Namespace, 1 ResourceClaimTemplate",
        "neuron-helm-chart 1.3.0 into kube-system, recorded",
        "1 AWS::EC2::PlacementGroup",
        "1 placeholders for Lambda code",
    ):
        assert wanted in text


def test_it_is_not_called_a_deployment_and_what_moto_could_not_resolve_is_printed(
    rehearsal: Rehearsal,
) -> None:
    text = "\n".join(account_lines(replace(rehearsal, unresolved=("GetAtt Vpc.Colour is unknown",))))
    assert "GetAtt Vpc.Colour is unknown" in text
    assert "deployment" not in text.lower()


def test_in_one_line_it_counts_what_was_created_recorded_and_not_modelled(rehearsal: Rehearsal) -> None:
    created, recorded = (
        sum(rehearsal.count(stack, one) for stack in rehearsal.stacks)
        for one in (Outcome.CREATED, Outcome.RECORDED)
    )
    counted = f"{created} resources created, {recorded} recorded only, 2 not modelled"
    assert in_one_line(rehearsal) == f"rehearsed 3 stacks against a local AWS: {counted}"


def test_what_is_long_is_cut_off_at_100_columns_and_three_lines(rehearsal: Rehearsal) -> None:
    facts = replace(rehearsal.facts, buckets=("a-very-long-name-of-a-bucket",) * 50)
    lines = account_lines(replace(rehearsal, facts=facts))
    assert max(map(len, lines)) <= 100
    assert sum("a-very-long-name" in line for line in lines) == 3


def test_the_account_says_what_is_left_and_what_was_disturbed(rehearsal: Rehearsal) -> None:
    assert not [line for line in account_lines(rehearsal) if "teardown" in line]
    ended = replace(rehearsal, unchanged=7, remains=Remains(before=9, left=("s3 Buckets: x",), disturbed=()))
    lines = account_lines(ended)
    assert "A second deployment changes nothing in 7 stacks." in lines
    assert "After the teardown: 9 things were there before the deployment, all as they were." in lines
    assert "  s3 Buckets: x" in lines
