"""Checks of services outside AWS: image registries, this machine's public address, and models of Hugging Face that need a token."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from ipaddress import ip_address, ip_network
from urllib.parse import urlencode

from infra.pins import NEURON_CHART
from trnspec.core.findings import Finding, Outside, finding, fine
from trnspec.experiment import Experiment
from trnspec.experiment.arms import Weights
from trnspec.operations.cloud.access import PLUGIN
from trnspec.operations.cloud.clock import TooLateError, within

TOKEN = "HF_TOKEN"
"""Environment variable with the token that the Secret of `token_secret` holds in the cluster."""
TIMEOUT_S = 20
_PATIENCE_S = 60
"""Time limit of a whole answer; TIMEOUT_S alone does not end a slow one."""
_MAX_BYTES = 2**20
"""A token has a few thousand bytes."""
_KINDS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
)
_LATER = "wait a minute, then run this again"


@dataclass(frozen=True)
class HttpResponse:
    """Status, headers (names are not case-sensitive) and body."""

    status: int
    headers: Message
    body: bytes = b""


class Web:
    """GET and HEAD requests. `scheme` is for tests, whose registry has no certificate."""

    address_service = "https://checkip.amazonaws.com"
    hub: str | None = None
    """Another hub instead of Hugging Face."""

    def __init__(self, *, scheme: str = "https", address_service: str | None = None) -> None:
        self.scheme = scheme
        self.address_service = address_service or self.address_service

    def ask(self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Send a request. Raises `Outside` without an answer."""
        try:
            request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
            with within(_PATIENCE_S), urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                content = response.read(_MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                return HttpResponse(error.code, error.headers)  # nobody reads the page of an error
        except TooLateError:
            raise _unreachable(url, f"no whole answer in {_PATIENCE_S} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _unreachable(url, f"does not answer ({getattr(error, 'reason', error)})") from None
        if len(content) > _MAX_BYTES:
            why = f"its answer is longer than {_MAX_BYTES >> 20} MiB"
            raise _unreachable(url, f"does not answer ({why})")
        return HttpResponse(response.status, response.headers, content)


def _unreachable(where: str, why: str) -> Outside:
    return Outside(Finding(where, None, why, "check network and proxy"))


def images(experiment: Experiment) -> tuple[str, ...]:
    """Return the images of the experiment, and charts in OCI registries, which are read like images; the image of the
    benchmark is built at deploy time."""
    named = dict.fromkeys(arm.runtime.image for arm in experiment.arms)
    return (*named, f"{NEURON_CHART.repository.removeprefix('oci://')}:{NEURON_CHART.version}")


def image_exists(image: str, web: Web) -> Finding:
    """Check that the registry has the image's manifest, with the same anonymous request as a kubelet (OCI distribution)."""
    registry, path = image.split("/", 1)
    path, _, digest = path.partition("@")
    name, colon, tag = path.rpartition(":")
    reference = digest or (tag if colon else "latest")
    url = f"{web.scheme}://{registry}/v2/{name if colon else path}/manifests/{reference}"
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


def _token(answer: HttpResponse, image: str, web: Web) -> str:
    """Return the token that the registry asks for: `Bearer realm="...",service="...",scope="..."`
    (https://distribution.github.io/distribution/spec/auth/token/)."""
    asked = dict(re.findall(r'(\w+)="([^"]*)"', answer.headers.get("www-authenticate", "")))
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
    """Check this machine's public address against `cluster.admin_cidrs`; without networks, check the Session Manager plugin."""
    cidrs = experiment.cluster.admin_cidrs
    if not cidrs:
        if shutil.which(PLUGIN):
            return fine(f"none: the endpoint is private, {PLUGIN} is installed")
        why = f"none, so the endpoint is private, and {PLUGIN} is not installed"
        remedy = (
            "install the Session Manager plugin (docs.aws.amazon.com/systems-manager), or add your network"
        )
        return finding(why, remedy)
    text = web.ask(web.address_service).body.decode(errors="replace").strip()
    try:
        address = ip_address(text)
    except ValueError:
        raise _unreachable(web.address_service, f"answers {text[:40]!r}, which is not an address") from None
    here = f"{address}, where this machine comes from, is in"
    for cidr in cidrs:
        if address in ip_network(cidr, strict=False):
            return fine(f"{here} {cidr}")
    remedy = f"add {address}/{address.max_prefixlen} to cluster.admin_cidrs and deploy"
    return finding(f"{here} none of {', '.join(cidrs)}", remedy)


def models_with_token(experiment: Experiment) -> tuple[Weights, ...]:
    """Return the models of Hugging Face that may need a token: gated models, or all if the file names a token."""
    public = [weights for weights in experiment.weights if weights.address is None]
    return tuple(weights for weights in public if weights.model.gated or experiment.token_secret)


def licences(experiment: Experiment, *, endpoint: str | None = None) -> Finding:
    """Check that Hugging Face grants access to the models: one small file of each is requested as in the fetch Job, and nothing is
    downloaded. `endpoint`: another hub.

    Raises `Outside` without a token, and if the hub cannot be asked.
    """
    asked, token = models_with_token(experiment), os.environ.get(TOKEN, "").strip()
    names, secret = ", ".join(dict.fromkeys(weights.model.name for weights in asked)), experiment.token_secret
    if not token:
        why = f"{TOKEN} is not set, so it is not known whether {names} can be fetched"
        key = f"the token that is the key `token` of Secret {secret or 'hf-token'}"
        raise Outside(Finding("", None, why, f"export {TOKEN}, {key}, then run this again"))
    for weights in asked:
        if (refused := _refused(weights, token, endpoint)) is not None:
            return refused
    return fine(f"{TOKEN} may read {names}; Secret {secret} must hold the same token")


def _refused(one: Weights, token: str, endpoint: str | None) -> Finding | None:
    """Return why the hub refuses a model; None if it grants access."""
    from httpx2 import (
        HTTPError,
    )  # what huggingface_hub asks with: its errors come through where nobody answers
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    name, page = one.model.name, f"https://huggingface.co/{one.model.name}"
    try:
        url = hf_hub_url(name, "config.json", revision=one.revision, endpoint=endpoint)
        get_hf_file_metadata(url, token=token, timeout=TIMEOUT_S, endpoint=endpoint)
    except errors.EntryNotFoundError:
        return None  # a head without this file; the repository is open to us
    except errors.GatedRepoError:
        why = f"{name} is gated, and the account of {TOKEN} has no access"
        return finding(why, f"accept its licence on {page} with that account, and wait until it is granted")
    except errors.RevisionNotFoundError:
        return finding(f"{name} has no revision {one.revision}", f"write a commit of {page}/commits/main")
    except errors.RepositoryNotFoundError:
        why = f"{name} does not exist on Hugging Face, or {TOKEN} may not see it"
        look = f"look at {page} with the account of that token; a fine-grained token must name it"
        return finding(why, look)
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            why = f"Hugging Face refuses {TOKEN} (HTTP {status})"
            return finding(why, "make a token that may read, at https://huggingface.co/settings/tokens")
        raise _unreachable(name, f"Hugging Face could not be asked (HTTP {status})") from None
    except (HTTPError, OSError) as error:
        raise _unreachable(name, f"Hugging Face could not be asked ({type(error).__name__})") from None
    return None
