"""What this machine reaches without credentials: registries, and its own address."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from ipaddress import ip_address, ip_network
from typing import BinaryIO
from urllib.parse import urlencode

from core.findings import Finding, Outside, finding, fine
from experiment import Experiment
from infra.pins import NEURON_CHART
from operations.cloud.access import PLUGIN
from operations.cloud.clock import TooLateError, within

TIMEOUT_S = 20
_PATIENCE_S = 60
"""For the whole of an answer: one that drips never passes TIMEOUT_S."""
_MOST_BYTES = 2**20
"""A token takes a few thousand."""
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_KINDS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
)
_LATER = "wait a minute, then run this again"


@dataclass(frozen=True)
class Answer:
    """Status, headers, whose names match in any case, and the body."""

    status: int
    headers: Message
    body: bytes = b""


class Web:
    """GET and HEAD. `scheme` is for tests, whose registry has no certificate."""

    address_service = "https://checkip.amazonaws.com"
    hub: str | None = None
    """Another hub than Hugging Face."""

    def __init__(self, *, scheme: str = "https", address_service: str | None = None) -> None:
        self.scheme = scheme
        self.address_service = address_service or self.address_service

    def ask(self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
        """Raises `Outside` when nobody answers."""
        try:
            request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
            with within(_PATIENCE_S), urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return Answer(response.status, response.headers, _body(response))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers)  # nobody reads the page of an error
        except TooLateError:
            raise _silent(url, f"no whole answer in {_PATIENCE_S} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _silent(url, f"does not answer ({getattr(error, 'reason', error)})") from None


def _silent(url: str, why: str) -> Outside:
    return Outside(Finding(url, None, why, "check network and proxy"))


def _body(response: BinaryIO) -> bytes:
    """Raises ValueError for more than anything that is asked for can have."""
    content = response.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
    return content


def images(experiment: Experiment) -> tuple[str, ...]:
    """Images that the experiment names, and charts in OCI registries, which are asked for as images are; the image of the
    benchmark is built at deploy time."""
    chart = NEURON_CHART
    named = dict.fromkeys(arm.runtime.image for arm in experiment.arms)
    return (*named, f"{chart.repository.removeprefix('oci://')}:{chart.version}")


def reachable(image: str, web: Web) -> Finding:
    """Whether the registry has the manifest, asked as a kubelet would (OCI distribution, anonymously)."""
    registry, path = image.split("/", 1)
    name, reference = parts(path)
    url = f"{web.scheme}://{registry}/v2/{name}/manifests/{reference}"
    answer = web.ask(url, method="HEAD", headers={"Accept": _KINDS})
    if answer.status == 401:
        token = _token(answer, image, web)
        answer = web.ask(url, method="HEAD", headers={"Accept": _KINDS, "Authorization": f"Bearer {token}"})
    if answer.status == 200:
        digest = answer.headers.get("docker-content-digest", "")
        return fine(f"{image}" + (f" ({digest})" if digest and digest not in image else ""))
    if answer.status == 404:
        return finding(f"{image}: the registry has no such image", "name a runtime whose image exists")
    if answer.status in (401, 403):
        why = f"{image}: the registry wants a login (HTTP {answer.status})"
        return finding(why, "let the nodes' role pull it, or use a public image")
    raise Outside(Finding(image, None, f"the registry answers HTTP {answer.status}", _LATER))


def parts(path: str) -> tuple[str, str]:
    """Repository and what is asked of it: the digest where there is one, else the tag."""
    path, at, digest = path.partition("@")
    name, colon, tag = path.rpartition(":")
    if not colon:
        name, tag = path, "latest"
    return name, digest if at else tag


def _token(answer: Answer, image: str, web: Web) -> str:
    """As the registry asks for it: `Bearer realm="...",service="...",scope="..."`
    (https://distribution.github.io/distribution/spec/auth/token/)."""
    asked = dict(_CHALLENGE.findall(answer.headers.get("www-authenticate", "")))
    realm = asked.pop("realm", "")
    if not realm.startswith(f"{web.scheme}://"):
        why = f"the registry wants a login and names no {web.scheme} address for it"
        raise Outside(Finding(image, None, why, "check the image's name"))
    given = web.ask(f"{realm}?{urlencode(asked)}")
    try:
        found = json.loads(given.body)
        return str(found.get("token") or found["access_token"])
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise Outside(Finding(image, None, f"{realm} gives no token (HTTP {given.status})", _LATER)) from None


def admin_cidrs(experiment: Experiment, web: Web) -> Finding:
    """The address we come from against `cluster.admin_cidrs`; without any, the plugin that tunnels."""
    cidrs = experiment.cluster.admin_cidrs
    if not cidrs:
        if shutil.which(PLUGIN):
            return fine(f"none: the endpoint is private, {PLUGIN} is installed")
        return finding(
            f"none, so the endpoint is private, and {PLUGIN} is not installed",
            "install the Session Manager plugin (docs.aws.amazon.com/systems-manager), or add your network",
        )
    text = web.ask(web.address_service).body.decode(errors="replace").strip()
    try:
        address = ip_address(text)
    except ValueError:
        raise _silent(web.address_service, f"answers {text[:40]!r}, which is not an address") from None
    told = f"{address}, where this machine comes from, is in"
    for cidr in cidrs:
        if address in ip_network(cidr, strict=False):
            return fine(f"{told} {cidr}")
    remedy = f"add {address}/{address.max_prefixlen} to cluster.admin_cidrs and deploy"
    return finding(f"{told} none of {', '.join(cidrs)}", remedy)
