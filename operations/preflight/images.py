"""Whether the images can be pulled, asked of their registry as a kubelet would (OCI distribution, anonymously).

https://distribution.github.io/distribution/spec/auth/token/
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from experiment.finding import Finding, Outside, finding, fine
from operations.preflight.web import Answer, challenge

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.preflight.web import Web

_KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_LATER = "wait a minute, then run this again"


def of(experiment: Experiment) -> tuple[str, ...]:
    """Images that the experiment names; that of the benchmark is built at deploy time."""
    return tuple(dict.fromkeys(arm.runtime.image for arm in experiment.arms))


def reachable(image: str, web: Web) -> Finding:
    """Whether the registry has the manifest."""
    registry, path = image.split("/", 1)
    name, reference = parts(path)
    url = f"{web.scheme}://{registry}/v2/{name}/manifests/{reference}"
    answer = web.ask(url, method="HEAD", headers={"Accept": _KINDS})
    if answer.status == 401:
        token = _token(answer, image, web)
        answer = web.ask(url, method="HEAD", headers={"Accept": _KINDS, "Authorization": f"Bearer {token}"})
    if answer.status == 200:
        digest = answer.headers.get("docker-content-digest", "")
        return fine("image", f"{image}" + (f" ({digest})" if digest and digest not in image else ""))
    if answer.status == 404:
        return finding(
            "image", f"{image}: the registry has no such image", "name a runtime whose image exists"
        )
    if answer.status in (401, 403):
        return finding(
            "image",
            f"{image}: the registry wants a login (HTTP {answer.status})",
            "let the nodes' role pull it, or use a public image",
        )
    raise Outside(Finding(image, None, f"the registry answers HTTP {answer.status}", _LATER))


def parts(path: str) -> tuple[str, str]:
    """Repository and what is asked of it: the digest where there is one, else the tag."""
    path, at, digest = path.partition("@")
    name, colon, tag = path.rpartition(":")
    if not colon:
        name, tag = path, "latest"
    return name, digest if at else tag


def _token(answer: Answer, image: str, web: Web) -> str:
    asked = challenge(answer.headers.get("www-authenticate", ""))
    realm = asked.pop("realm", "")
    if not realm.startswith(f"{web.scheme}://"):
        raise Outside(
            Finding(
                image,
                None,
                f"the registry wants a login and names no {web.scheme} address for it",
                "check the image's name",
            )
        )
    given = web.ask(f"{realm}?{urlencode(asked)}")
    try:
        found = json.loads(given.body)
        return str(found.get("token") or found["access_token"])
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise Outside(Finding(image, None, f"{realm} gives no token (HTTP {given.status})", _LATER)) from None
