"""What cdk-nag finds in the pipeline and in the delivery's two stacks and we keep, each with its reason.

As in `infra.acknowledged`: a finding in no entry fails the tests, and so does an entry that matches nothing.
"""

from __future__ import annotations

from infra.acknowledged import Acknowledged

_PIPELINE = "pipeline/Pipeline/Pipeline"
_BUILDS = rf"{_PIPELINE}/Build/(Checks/Checks|Synth/CdkBuildProject)/Role"
_GRANT = (
    "CDK's grant on the one bucket and key of the pipeline's artifacts, whose keys are not known beforehand"
)
_ARTIFACTS = r"Action::(s3|kms):.*\*|Resource::<Artifacts\w*\.Arn>/\*"
_OWN_LOGS = "streams of the build's own log group"
_OWN_REPORTS = "CDK lets a pipeline's builds publish test reports; the group is the build's own"
_LOGS = r"Resource::arn:aws:logs:.*:log-group:/aws/codebuild/<.*>:\*"
_REPORTS = r"Resource::arn:aws:codebuild:.*:report-group/<.*>-\*"
_SOURCE = "CDK's grant for the source; the bucket is the one of the deployment's assets"
_OBJECTS = "the keys below the prefix are not known beforehand; bucket and action are exact"

ACKNOWLEDGED = (
    *(
        Acknowledged(rule="IAM5", place=place, what=_ARTIFACTS, reason=_GRANT)
        for place in (
            rf"{_PIPELINE}/Role",
            rf"{_PIPELINE}/Source/[^/]+/CodePipelineActionRole",
            _BUILDS,
            "pipeline/Pipeline/UpdatePipeline/SelfMutation/Role",
            "pipeline/Pipeline/Assets/FileRole",
            "pipeline/DevStepsRole",
            "pipeline/ProdStepsRole",
        )
    ),
    *(
        Acknowledged(rule="IAM5", place=place, what=what, reason=reason)
        for place in (
            _BUILDS,
            "pipeline/Pipeline/UpdatePipeline/SelfMutation/Role",
            "pipeline/DevStepsRole",
            "pipeline/ProdStepsRole",
        )
        for what, reason in ((_LOGS, _OWN_LOGS), (_REPORTS, _OWN_REPORTS))
    ),
    Acknowledged(
        rule="IAM5",
        place="pipeline/Pipeline/UpdatePipeline/SelfMutation/Role",
        what=r"Resource::arn:\*:iam::\d{12}:role/\*",
        reason="a condition admits roles that carry the tag of the bootstrap, in the pipeline's own account",
    ),
    Acknowledged(
        rule="IAM5",
        place="pipeline/Pipeline/UpdatePipeline/SelfMutation/Role",
        what=r"Resource::\*",
        reason="CDK reads the state of its own stack and whether the bucket of the bootstrap exists",
    ),
    Acknowledged(
        rule="IAM5",
        place="pipeline/Pipeline/Assets/FileRole",
        what=r"Resource::\*",
        reason="CDK lets publishing see, start and stop builds; a statement beside it denies the last two",
    ),
    Acknowledged(
        rule="IAM5",
        place="pipeline/Pipeline/Assets/FileRole",
        what=r"Resource::arn:aws:(logs|codebuild):.*:(log-group:/aws/codebuild|report-group)/\*",
        reason="one role publishes all assets, and CDK names their logs when it knows how many there are",
    ),
    Acknowledged(rule="IAM5", place="pipeline/PullRequests/Project/Role", what=_LOGS, reason=_OWN_LOGS),
    Acknowledged(
        rule="CB4",
        place="pipeline/PullRequests/Project",
        reason="the project stores nothing; its result is a log",
    ),
    Acknowledged(
        rule="CB4",
        place=r"(dev|prod)/delivery/(Smoke|Compile|Benchmark)",
        reason="the project stores nothing; results go to the experiment's own bucket and key",
    ),
    Acknowledged(
        rule="IAM5",
        place=r"(dev|prod)/delivery/Role",
        what=r"Action::s3:.*\*|Resource::arn:.*:s3:::cdk-.*\*",
        reason=_SOURCE,
    ),
    Acknowledged(rule="IAM5", place=r"(dev|prod)/delivery/Role", what=_LOGS, reason=_OWN_LOGS),
    Acknowledged(
        rule="IAM5",
        place=r"(dev|prod)/delivery/Role",
        what=r"Resource::.*:network-interface/\*",
        reason="CodeBuild hands its interfaces to itself; a condition names service and subnets",
    ),
    Acknowledged(
        rule="IAM5",
        place=r"(dev|prod)/delivery/(Smoke|Compile|Benchmark)/PolicyDocument",
        what=r"Resource::\*",
        reason="describing the network, and interfaces in it, know no resource; CodeBuild needs both inside a VPC",
    ),
    Acknowledged(
        rule="IAM5",
        place="prod/delivery-role/Role",
        what=r"Resource::arn:.*:nodegroup/.*-trn2-[a-z0-9-]+/\*",
        reason="EKS ends the ARN of a node group with an id of its own; cluster and name are exact",
    ),
    Acknowledged(
        rule="IAM5",
        place="prod/delivery-role/Role",
        what=r"Resource::arn:.*:schedule/.*-off/\*",
        reason="schedules of one group, which holds nothing but what turns the nodes off",
    ),
    Acknowledged(
        rule="IAM5",
        place="prod/delivery-role/Role",
        what=r"Resource::arn:.*:s3:::.*-(results|artifacts|checkpoints)-.*/(runs/\*|plans/\*|state/\*|\*/COMPLETE|\*)",
        reason=_OBJECTS,
    ),
    Acknowledged(
        rule="IAM5",
        place="prod/delivery-role/Role",
        what=r"Resource::\*",
        reason="cloudwatch:PutMetricData knows no resource; a condition names one namespace",
    ),
)
