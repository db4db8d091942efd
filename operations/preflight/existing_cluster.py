"""Checks of an existing cluster: it matches the experiment, it has the listed software, and its API server accepts every
object. The cluster is only read, with dry runs, and never changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from cdk8s_charts.manifests import fill, read, with_tags
from cdk8s_charts.pods import DRIVER
from cdk8s_charts.workloads.namespace import LOCAL_DNS
from core.findings import Finding, finding, fine
from core.words import count
from experiment import Experiment, naming
from experiment.checks.cluster_section import NEWEST_KUBERNETES
from experiment.forms import INSTALLABLE, Installed
from infra.deployment_file import read_deployment
from infra.synthesis import DEPLOYMENT
from operations.cloud import cloudformation
from operations.cloud.access import cluster_of, described
from operations.cloud.aws import Aws
from operations.cloud.cloudformation import TAG
from operations.cloud.kubernetes import Object, pod_containers, pod_spec, pod_template, release_of
from operations.options import ROOT
from operations.preflight.existing_problems import Problem, problem, problem_finding

_DAEMONS: dict[Installed, str] = {
    "eks-pod-identity-agent": "eks-pod-identity-agent",
    "aws-mountpoint-s3-csi-driver": "s3-csi-node",
    "amazon-cloudwatch-observability": "cloudwatch-agent",
    "eks-node-monitoring-agent": "eks-node-monitoring-agent",
}
"""DaemonSets that identify software, no matter who installed it."""
_PLUGIN, _DRIVER = "neuron-device-plugin", "neuron-dra-driver"
"""Parts of the names of AWS Neuron's images."""
_NETWORK_PLUGINS = ("aws-node", "cilium", "calico-node")
"""DaemonSets without which a node is never ready: the VPC CNI, or its replacement."""
_WATCHES: Installed = "amazon-cloudwatch-observability"
"""Optional software; it is left out if it is listed as provided."""
_MOUNTS: Installed = "aws-mountpoint-s3-csi-driver"


class ExistingCluster:
    """The checks of the cluster that an experiment names."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._experiment, self._aws = experiment, aws
        self._wanted = experiment.cluster
        serving = experiment.baseline.serving
        self._allocation, self._claims = serving.allocation, serving.allocation == "dra"

    def checks(self) -> dict[str, Callable[[], Finding]]:
        """Return all checks by name; empty if a deployment creates the cluster."""
        if self._wanted.existing is None:
            return {}
        return {"cluster": self.cluster, "software": self.software, "admission": self.admission}

    @cached_property
    def _deployed(self) -> set[str]:
        """The deployed stacks of the experiment."""
        made = {stack.name for stack in cloudformation.deployed(self._experiment, self._aws) if stack.made}
        return {part for part in ("nodes", "workloads") if naming.stack_name(self._experiment, part) in made}

    def cluster(self) -> Finding:
        """Check version, network, authentication mode, and the node group of another experiment if it is used."""
        there = described(self._experiment, self._aws)
        mode = there.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
        found = f"{there['name']}: Kubernetes {there['version']}, authentication mode {mode}"
        return _joined(found, [*self._wrong(there, mode)])

    def _wrong(self, there: dict[str, Any], mode: str) -> Iterator[Problem]:
        wanted, network, version = self._wanted, there["resourcesVpcConfig"], there["version"]
        numbers = {
            "version": version,
            "asked": wanted.kubernetes,
            "newest": "{}.{}".format(*NEWEST_KUBERNETES),
        }
        if _minor(version) < _minor(wanted.kubernetes):
            yield problem("cluster too-old", **numbers)
        elif _minor(version) > NEWEST_KUBERNETES:
            yield problem("cluster too-new", **numbers)
        elif version != wanted.kubernetes:
            yield problem("cluster other-version", **numbers)
        for key, ours, name in (
            ("network.vpc", wanted.network.vpc, "vpcId"),
            ("security_group", wanted.security_group, "clusterSecurityGroupId"),
        ):
            if (says := network.get(name)) != ours:
                yield problem("cluster differs", key=key, ours=ours, says=says)
        if mode not in ("API", "API_AND_CONFIG_MAP"):
            yield problem("cluster mode", mode=mode, name=there["name"], region=self._aws.region)
        if there.get("kubernetesNetworkConfig", {}).get("ipFamily") == "ipv6":
            yield problem("cluster ipv6")
        if not network.get("endpointPrivateAccess", False):
            yield problem("cluster endpoint")
        eks, name = self._aws.client("eks"), naming.neuron_nodegroup(self._experiment)
        if wanted.nodes_of is not None:
            groups = list(eks.every("list_nodegroups", "nodegroups", clusterName=wanted.existing))
            if name not in groups:
                shown = ", ".join(groups) or "none"
                yield problem("cluster node-group", name=name, groups=shown, owner=wanted.nodes_of)
        # EKS keeps one access entry a principal; ours has the tag that all resources of our stacks have.
        if (role := read_deployment(DEPLOYMENT).pipeline_role) is not None:
            about, own = {"clusterName": wanted.existing, "principalArn": role}, self._experiment.name
            entry = eks.find("describe_access_entry", "ResourceNotFoundException", **about)
            if entry is not None and entry["accessEntry"].get("tags", {}).get(TAG) != own:
                group = naming.watchers_group(self._experiment)
                yield problem("cluster access-entry", role=role, own=own, group=group)

    def software(self) -> Finding:
        """Compare the installed software with the declared software; device plugin and DRA driver must not both run on a node."""
        system = {naming.NODE_ROLE_LABEL: naming.role_label(self._experiment, "system")}
        with cluster_of(self._experiment, self._aws) as kubernetes:
            daemons = kubernetes.list("daemonsets", everywhere=True)
            classes = kubernetes.list("deviceclasses") if self._claims else []
            nodes = kubernetes.list("nodes", labels=system)
        # What gives devices to pods in the way that the experiment asks for.
        devices: list[Object] = [item for item in classes if item["metadata"]["name"] == DRIVER]
        devices += [daemon for daemon in daemons if _runs(daemon, _DRIVER if self._claims else _PLUGIN)]
        names = {daemon["metadata"]["name"] for daemon in daemons}
        neuron = any(device["kind"] == "DeviceClass" or not self._claims for device in devices)
        known: dict[Installed, bool] = {name: daemon in names for name, daemon in _DAEMONS.items()}
        known |= {"neuron": neuron, "system-nodes": bool(nodes)}
        there: set[Installed] = {name for name, here in known.items() if here}
        installs = [name for name in INSTALLABLE if self._wanted.brings(name)]
        has = ", ".join(sorted(there)) or "nothing"
        found = f"there: {has}; a deployment installs: {', '.join(installs) or 'nothing'}"
        if _WATCHES in installs:
            found += ", whose agents run on all nodes of the cluster, so that CloudWatch bills metrics and pods' logs of all of it"
        problems = [
            *self._without_network(daemons),
            *self._undeclared(there, installs, devices),
            *self._two_ways(daemons),
            *_cached_names(daemons),
        ]
        running = [device for device in devices if pod_spec(device)]
        if "neuron" not in installs and running and not any(map(self._comes_to_ours, running)):
            ((key, value),) = naming.driver_label(self._allocation).items()
            name = running[0]["metadata"]["name"]
            problems.append(problem("software driver-elsewhere", name=name, key=key, value=value))
        if _MOUNTS not in installs:
            problems += _cannot_mount(daemons)
        return _joined(found, problems)

    def _without_network(self, daemons: Sequence[Object]) -> Iterator[Problem]:
        plugins = [daemon for daemon in daemons if daemon["metadata"]["name"] in _NETWORK_PLUGINS]
        if not any(map(self._comes_to_ours, plugins)):
            auto = described(self._experiment, self._aws).get("computeConfig", {}).get("enabled")
            reason = ": EKS Auto Mode installs one on its own nodes only" if auto else ""
            yield problem("software network", plugins=", ".join(_NETWORK_PLUGINS), auto=reason)

    def _undeclared(
        self,
        there: set[Installed],
        installs: Sequence[Installed],
        devices: Sequence[Object],
    ) -> Iterator[Problem]:
        owner, provided = self._wanted.nodes_of, self._wanted.provided
        # Helm refuses to install objects that belong to another release.
        foreign = [
            f"{device['kind']} {device['metadata']['name']} of {f'Helm release {release}' if release else 'no Helm release'}"
            for device in devices
            if (release := release_of(device)) != naming.neuron_release(self._experiment)
        ]
        earlier = "; if version 0.2 of this experiment installed it, run ./trnspec teardown first"
        for name in INSTALLABLE:
            ours = not foreign if name == "neuron" else "nodes" in self._deployed
            if name in installs and name in there and not ours and name != "system-nodes":
                release = f" ({', '.join(foreign)})" if name == "neuron" else ""
                before = earlier if release and "workloads" in self._deployed else ""
                yield problem("software again", name=name, release=release, before=before)
            elif name == "neuron" and name in provided and name in there and not foreign:
                yield problem("software alone")
            elif name in provided and name not in there and name != _WATCHES:
                yield problem("software absent", name=name)
            elif name not in installs and name not in there and name not in provided:
                came = f", or add {name} to cluster.provided where {owner} has it there"
                more = came if name == "system-nodes" else ""
                yield problem("software not-yet", name=name, owner=owner, more=more)

    def _two_ways(self, daemons: Sequence[Object]) -> Iterator[Problem]:
        """Yield a problem if device plugin and DRA driver would both run on the experiment's nodes."""
        other, instead = (_PLUGIN, "device-plugin") if self._claims else (_DRIVER, "dra")
        label = f"{naming.NODE_ROLE_LABEL}: {naming.role_label(self._experiment, 'neuron')}"
        known = {"allocation": self._allocation, "instead": instead, "label": label}
        for daemon in daemons:
            if _runs(daemon, other) and self._comes_to_ours(daemon):
                yield problem("software two-ways", name=_name(daemon), **known)

    def _comes_to_ours(self, daemon: Object) -> bool:
        """Whether selector and required node affinity of its pods admit our Trn2 nodes, by the labels that are known of them."""
        ours = {
            naming.NODE_ROLE_LABEL: naming.role_label(self._experiment, "neuron"),
            **naming.driver_label(self._allocation),
            "node.kubernetes.io/instance-type": self._experiment.instance.name,
            "eks.amazonaws.com/nodegroup": naming.neuron_nodegroup(self._experiment),
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }

        def met(expression: Object) -> bool:
            own, values = ours.get(expression["key"]), expression.get("values", ())
            results = {"In": own in values, "NotIn": own not in values}
            results |= {"Exists": own is not None, "DoesNotExist": own is None}
            return results.get(expression["operator"], False)

        spec = pod_spec(daemon)
        if any(ours.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
            return False
        required = spec.get("affinity", {}).get("nodeAffinity", {})
        terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
        return terms is None or any(all(map(met, term.get("matchExpressions", ()))) for term in terms)

    def admission(self) -> Finding:
        """Check that the server accepts every object, by a dry run; before the first deployment in namespace `default`."""
        own = naming.namespace(self._experiment)
        with cluster_of(self._experiment, self._aws) as kubernetes:
            exists = kubernetes.get("namespace", own) is not None
            if exists and "workloads" not in self._deployed:
                return problem_finding("admission namespace", own=own)
            place = own if exists else "default"
            objects = self._objects(place)
            objects += _pods(objects)
            refused, answer = kubernetes.refusals(objects, namespace=place)
        if refused:
            return problem_finding("admission refused", names=", ".join(refused), answer=answer)
        where = "" if exists else f", asked in namespace default because {own} does not exist yet"
        return fine(f"the server would take all {count(len(objects), 'object')}, pods included{where}")

    def _objects(self, place: str) -> list[dict[str, Any]]:
        """Return the objects of a deployment, in this namespace."""
        account, region = self._aws.account, self._aws.region
        assets = f"cdk-hnb659fds-container-assets-{account}-{region}:preflight"
        image = f"{account}.dkr.ecr.{region}.amazonaws.com/{assets}"
        values = {"AWS_ACCOUNT": account, "BENCHMARK_IMAGE": image, "LMEVAL_IMAGE": image}
        files = read(self._experiment, ROOT / "manifests")
        objects = fill((item for file in files for item in file.objects), with_tags(values))
        for item in objects:
            if "namespace" in item["metadata"]:
                item["metadata"] = {**item["metadata"], "namespace": place}
        return objects


def _pods(objects: Sequence[Object]) -> list[dict[str, Any]]:
    """What controllers make of the objects: a policy on pods does not look at a Deployment. Accounts and priorities come with
    the deployment; a pod that names one which does not exist yet is refused for that."""
    found = []
    for item in objects:
        if spec := pod_spec(item):
            place = {key: item["metadata"][key] for key in ("name", "namespace")}
            metadata = {**pod_template(item).get("metadata", {}), **place}
            left = {key: spec[key] for key in spec if key not in ("serviceAccountName", "priorityClassName")}
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": left})
    return found


def _runs(daemon: Object, image: str) -> bool:
    return any(image in str(container.get("image")) for container in pod_containers(daemon))


def _name(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _cannot_mount(daemons: Sequence[Object]) -> Iterator[Problem]:
    """Volumes need version 2 of the driver, which mounts with the identity of the pod that asks, on tainted nodes too."""
    for one in (daemon for daemon in daemons if daemon["metadata"]["name"] == _DAEMONS[_MOUNTS]):
        images = " ".join(str(container.get("image")) for container in pod_containers(one))
        versions = [int(number) for number in re.findall(r"s3-csi-driver:v?(\d+)\.", images)]
        if versions and max(versions) < 2:
            yield problem("software mounts-version", name=_MOUNTS, version=max(versions))
        if not any(
            taint.get("operator") == "Exists" and taint.get("key") in (None, "", naming.NEURON_TAINT_KEY)
            for taint in pod_spec(one).get("tolerations", ())
        ):
            yield problem("software mounts-taint", name=_MOUNTS, taint=naming.NEURON_TAINT_KEY)


def _cached_names(daemons: Sequence[Object]) -> Iterator[Problem]:
    """Yield a problem if NodeLocal DNSCache has an address that the network policies do not allow."""
    for daemon in daemons:
        arguments = [str(word) for container in pod_containers(daemon) for word in container.get("args", ())]
        if _runs(daemon, "k8s-dns-node-cache") and not any(LOCAL_DNS in word for word in arguments):
            yield problem("software local-dns", name=daemon["metadata"]["name"], address=LOCAL_DNS)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _joined(found: str, problems: Sequence[Problem]) -> Finding:
    """Return one finding for all problems, or a fine one."""
    if not problems:
        return fine(found)
    whys, remedies = zip(*problems, strict=True)
    return finding(f"{found}; {'; '.join(whys)}", "; ".join(remedies))
