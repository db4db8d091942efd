"""Whether Hugging Face hands out the models that it asks a token for: the licence is accepted, and the token is good."""

from __future__ import annotations

import os

from httpx2 import HTTPError  # what huggingface_hub asks with: its errors come through where nobody answers
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from core.findings import Finding, Outside, finding, fine
from experiment import Experiment
from experiment.arms import Weights

TOKEN = "HF_TOKEN"
"""Where this machine has the token that the Secret of `weights.token_secret` holds in the cluster."""
_FILE = "config.json"
_TIMEOUT_S = 20.0


def guarded(experiment: Experiment) -> tuple[Weights, ...]:
    """What is fetched from Hugging Face and may need a token: gated models, and all where the file names a token."""
    return tuple(
        one
        for one in experiment.weights
        if one.address is None and (one.model.gated or experiment.token_secret)
    )


def licences(experiment: Experiment, *, endpoint: str | None = None) -> Finding:
    """Asks for one small file of each model as the fetch Job would, and downloads nothing. `endpoint`: another hub than Hugging Face.

    Raises `Outside` without a token, and where the hub cannot be asked.
    """
    asked, token = guarded(experiment), os.environ.get(TOKEN, "").strip()
    names = ", ".join(dict.fromkeys(one.model.name for one in asked))
    if not token:
        why = f"{TOKEN} is not set, so it is not known whether {names} can be fetched"
        secret = experiment.token_secret or "hf-token"
        remedy = f"export {TOKEN}, the token that is the key `token` of Secret {secret}, then run this again"
        raise Outside(Finding("", None, why, remedy))
    for one in asked:
        found = _refused(one, token, endpoint)
        if found is not None:
            return found
    return fine(f"{TOKEN} may read {names}; Secret {experiment.token_secret} must hold the same token")


def _refused(one: Weights, token: str, endpoint: str | None) -> Finding | None:
    """Why the hub does not hand it out; `None` where it does."""
    name = one.model.name
    page = f"https://huggingface.co/{name}"
    try:
        url = hf_hub_url(name, _FILE, revision=one.revision, endpoint=endpoint)
        get_hf_file_metadata(url, token=token, timeout=_TIMEOUT_S, endpoint=endpoint)
    except EntryNotFoundError:
        return None  # a head without this file; the repository is open to us
    except GatedRepoError:
        why = f"{name} is gated, and the account of {TOKEN} has no access"
        return finding(why, f"accept its licence on {page} with that account, and wait until it is granted")
    except RevisionNotFoundError:
        return finding(f"{name} has no revision {one.revision}", f"write a commit of {page}/commits/main")
    except RepositoryNotFoundError:
        why = f"{name} does not exist on Hugging Face, or {TOKEN} may not see it"
        return finding(
            why, f"look at {page} with the account of that token; a fine-grained token must name it"
        )
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            why = f"Hugging Face refuses {TOKEN} (HTTP {error.response.status_code})"
            return finding(why, "make a token that may read, at https://huggingface.co/settings/tokens")
        raise Outside(_silent(name, f"HTTP {error.response.status_code}")) from None
    except (HTTPError, OSError) as error:
        raise Outside(_silent(name, type(error).__name__)) from None
    return None


def _silent(name: str, why: str) -> Finding:
    return Finding(name, None, f"Hugging Face could not be asked ({why})", "check network and proxy")
