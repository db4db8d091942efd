"""Whether this machine may talk to the cluster's endpoint."""

from __future__ import annotations

import shutil
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from experiment.finding import Finding, Outside, finding, fine
from operations.tunnel import PLUGIN

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.preflight.web import Web


def admin_cidrs(experiment: Experiment, web: Web) -> Finding:
    """The address we come from against `cluster.admin_cidrs`; without any, the plugin that tunnels."""
    cidrs = experiment.cluster.admin_cidrs
    if not cidrs:
        if shutil.which(PLUGIN):
            return fine("admin_cidrs", f"none: the endpoint is private, {PLUGIN} is installed")
        return finding(
            "admin_cidrs",
            f"none, so the endpoint is private, and {PLUGIN} is not installed",
            "install the Session Manager plugin (docs.aws.amazon.com/systems-manager), or add your network",
        )
    text = web.ask(web.address_service).body.decode(errors="replace").strip()
    try:
        address = ip_address(text)
    except ValueError:
        raise Outside(
            Finding(
                web.address_service,
                None,
                f"answers {text[:40]!r}, which is no address",
                "check network and proxy",
            )
        ) from None
    for cidr in cidrs:
        if address in ip_network(cidr, strict=False):
            return fine("admin_cidrs", f"{address}, where this machine comes from, is in {cidr}")
    return finding(
        "admin_cidrs",
        f"{address}, where this machine comes from, is in none of {', '.join(cidrs)}",
        f"add {address}/{address.max_prefixlen} to cluster.admin_cidrs and deploy",
    )
