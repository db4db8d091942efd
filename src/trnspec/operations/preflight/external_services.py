"""Checks of services outside AWS: this machine's public address, and models of Hugging Face that need a token."""

from __future__ import annotations

import os
import shutil
import urllib.request
from http.client import HTTPException
from ipaddress import ip_address, ip_network

from trnspec.core.findings import Finding, Outside, finding, fine
from trnspec.experiment import Experiment
from trnspec.experiment.arms import Weights
from trnspec.operations.cloud.access import PLUGIN

ADDRESS_SERVICE = "https://checkip.amazonaws.com"
TOKEN = "HF_TOKEN"
"""Environment variable with the token that the Secret of `token_secret` holds in the cluster."""
HUB: str | None = None
"""Another hub instead of Hugging Face."""
TIMEOUT_S = 20


def _unreachable(where: str, why: str) -> Outside:
    return Outside(Finding(where, None, why, "check network and proxy"))


def admin_cidrs(experiment: Experiment) -> Finding:
    """Check this machine's public address against `cluster.admin_cidrs`; without networks, check the Session Manager plugin."""
    cidrs = experiment.cluster.admin_cidrs
    if not cidrs:
        if shutil.which(PLUGIN):
            return fine(f"none: the endpoint is private, {PLUGIN} is installed")
        why = f"none: the cluster's endpoint is private and needs the Session Manager plugin; {PLUGIN} is not installed"
        install = "install it (https://docs.aws.amazon.com/systems-manager)"
        return finding(why, f"{install}, or write your network into cluster.admin_cidrs")
    try:
        with urllib.request.urlopen(ADDRESS_SERVICE, timeout=TIMEOUT_S) as response:
            address = ip_address(response.read(100).decode().strip())
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(ADDRESS_SERVICE, f"gives no address ({error})") from None
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


def licences(experiment: Experiment) -> Finding:
    """Check that Hugging Face grants access to the models: one small file of each is requested as in the fetch Job, and nothing is
    downloaded.

    Raises `Outside` without a token, and if the hub cannot be asked.
    """
    asked, token = models_with_token(experiment), os.environ.get(TOKEN, "").strip()
    names, secret = ", ".join(dict.fromkeys(weights.model.name for weights in asked)), experiment.token_secret
    if not token:
        why = f"{TOKEN} is not set, so it is not known whether {names} can be fetched"
        key = f"the token that is the key `token` of Secret {secret or 'hf-token'}"
        raise Outside(Finding("", None, why, f"export {TOKEN}, {key}, then run this again"))
    for weights in asked:
        if (refused := _refused(weights, token)) is not None:
            return refused
    return fine(f"{TOKEN} may read {names}; Secret {secret} must hold the same token")


def _refused(one: Weights, token: str) -> Finding | None:
    """Return why the hub refuses a model; None if it grants access."""
    from httpx2 import HTTPError  # with which huggingface_hub asks
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    name, page = one.model.name, f"https://huggingface.co/{one.model.name}"
    try:
        url = hf_hub_url(name, "config.json", revision=one.revision, endpoint=HUB)
        get_hf_file_metadata(url, token=token, timeout=TIMEOUT_S, endpoint=HUB)
    except errors.EntryNotFoundError:
        return None  # a head without this file; the repository is open to us
    except errors.GatedRepoError:
        why = f"{name} is gated, and the account of {TOKEN} has no access"
        return finding(why, f"accept its licence on {page} with that account, and wait until it is granted")
    except errors.RevisionNotFoundError:
        return finding(f"{name} has no revision {one.revision}", f"write a commit of {page}/commits/main")
    except errors.RepositoryNotFoundError:
        why = f"{name} does not exist on Hugging Face, or {TOKEN} may not see it"
        return finding(why, f"look at {page} with the account of that token")
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            why = f"Hugging Face refuses {TOKEN} (HTTP {error.response.status_code})"
            return finding(why, "make a token that may read, at https://huggingface.co/settings/tokens")
        raise _unreachable(name, f"Hugging Face answers HTTP {error.response.status_code}") from None
    except (HTTPError, OSError) as error:
        raise _unreachable(name, f"Hugging Face could not be asked ({type(error).__name__})") from None
    return None
