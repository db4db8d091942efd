"""`python -m trnspec.operations.cloud.eks_token CLUSTER REGION`: the credential that kubectl shows an EKS cluster, without the AWS CLI.

A token is the presigned address of sts:GetCallerIdentity with the cluster's name signed in a header, base64, behind
`k8s-aws-v1.` (https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster). It
is valid for 15 minutes; kubectl asks again when it has expired.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from trnspec.operations.cloud.aws import translate
from trnspec.operations.cloud.clock import stamp

_SIGNED_FOR_S = 60
"""The expiry that `aws eks get-token` signs; EKS accepts the token for 15 minutes anyway."""
_VALID = timedelta(minutes=14)


def credential(cluster: str, region: str, *, now: datetime) -> dict[str, Any]:
    """Return an ExecCredential (https://kubernetes.io/docs/reference/config-api/client-authentication.v1/)."""
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": stamp(now + _VALID), "token": token(cluster, region)},
    }


def token(cluster: str, region: str) -> str:
    import boto3
    from botocore.signers import RequestSigner

    session = boto3.Session()
    sts = session.client("sts", region_name=region).meta
    keys = session.get_credentials()
    signer = RequestSigner(sts.service_model.service_id, region, "sts", "v4", keys, sts.events)
    url = f"{sts.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15"
    asked = {"method": "GET", "url": url, "headers": {"x-k8s-aws-id": cluster}, "body": {}, "context": {}}
    signed = signer.generate_presigned_url(asked, "", expires_in=_SIGNED_FOR_S, region_name=region)
    return "k8s-aws-v1." + base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")


if __name__ == "__main__":
    from botocore.exceptions import BotoCoreError, ClientError

    _, _cluster, _region = sys.argv
    try:
        print(json.dumps(credential(_cluster, _region, now=datetime.now(UTC))))
    except (BotoCoreError, ClientError) as error:
        print(translate(error, action="sts:GetCallerIdentity", region=_region), file=sys.stderr)
        sys.exit(3)
