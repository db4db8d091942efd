"""Whether an existing cluster is the one that the experiment describes, what it has already, and whether its server takes every
object. It is read, asked by dry run, and never changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from cdk8s_charts.manifests import fill, read, with_tags
from cdk8s_charts.pods import DRIVER
from cdk8s_charts.workloads.namespace import LOCAL_DNS
from core.findings import Finding, finding, fine
from core.words import count
from experiment import Experiment
from experiment.checks.cluster_section import NEWEST_KUBERNETES
from experiment.forms import INSTALLABLE, Installed
from experiment.naming import (
    NEURON_TAINT_KEY,
    NODE_ROLE_LABEL,
    driver_label,
    namespace,
    neuron_nodegroup,
    neuron_release,
    role_label,
    stack_name,
    watchers_group,
)
from infra.deployment_file import read_deployment
from infra.synthesis import DEPLOYMENT
from operations.cloud import cloudformation
from operations.cloud.access import cluster_of, described
from operations.cloud.aws import Aws
from operations.cloud.cloudformation import TAG
from operations.cloud.kubernetes import Kubernetes, Object, pod_containers, pod_spec, pod_template
from operations.cloud.standing import release_of
from operations.options import ROOT

_DAEMONS: dict[Installed, str] = {
    "eks-pod-identity-agent": "eks-pod-identity-agent",
    "aws-mountpoint-s3-csi-driver": "s3-csi-node",
    "amazon-cloudwatch-observability": "cloudwatch-agent",
    "eks-node-monitoring-agent": "eks-node-monitoring-agent",
}
"""The DaemonSet by which each is known, no matter who installed it."""
_PLUGIN, _DRIVER = "neuron-device-plugin", "neuron-dra-driver"
"""In the names of AWS Neuron's images."""
_NETWORK_PLUGINS = ("aws-node", "cilium", "calico-node")
"""DaemonSets without which a node is never ready: the VPC CNI, or what stands in its place."""
_WATCHES: Installed = "amazon-cloudwatch-observability"
"""Nothing needs it, so naming it as provided leaves it out."""
_MOUNTS: Installed = "aws-mountpoint-s3-csi-driver"
_DRIVER_VERSION = re.compile(r"s3-csi-driver:v?(\d+)\.")
_MODES = ("API", "API_AND_CONFIG_MAP")


class ExistingCluster:
    """The checks of the cluster that an experiment names."""

    def __init__(self, experiment: Experiment, aws: Aws) -> None:
        self._experiment, self._aws = experiment, aws
        self._wanted = experiment.cluster

    def checks(self) -> dict[str, Callable[[], Finding]]:
        """All of them by name; none where a deployment makes the cluster."""
        if self._wanted.existing is None:
            return {}
        return {"cluster": self.cluster, "software": self.software, "admission": self.admission}

    @cached_property
    def _standing(self) -> set[str]:
        """Parts of the experiment that stand already."""
        made = {stack.name for stack in cloudformation.deployed(self._experiment, self._aws) if stack.made}
        return {part for part in ("nodes", "workloads") if stack_name(self._experiment, part) in made}

    def cluster(self) -> Finding:
        """Version, network, how it lets roles in, and the node group of another experiment where it is used."""
        there = described(self._experiment, self._aws)
        mode = there.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
        told = f"{there['name']}: Kubernetes {there['version']}, authentication mode {mode}"
        return _joined(told, [*self._wrong(there, mode), *self._without_group(), *self._let_in_already()])

    def _wrong(self, there: dict[str, Any], mode: str) -> Iterator[tuple[str, str]]:
        wanted, network = self._wanted, there["resourcesVpcConfig"]
        version, asked = there["version"], wanted.kubernetes
        if _minor(version) < _minor(asked):
            why = f"it has Kubernetes {version}, older than cluster.kubernetes {asked}"
            yield why, f"let its owner upgrade it to {asked}, or use another cluster"
        elif _minor(version) > NEWEST_KUBERNETES:
            newest = ".".join(map(str, NEWEST_KUBERNETES))
            why = f"it has Kubernetes {version}, newer than {newest}, the newest that kubectl here talks to"
            yield why, "use another cluster"
        elif version != asked:
            why = f"it has Kubernetes {version}, and add-ons are pinned for cluster.kubernetes {asked}"
            yield why, f'write cluster.kubernetes: "{version}", then render'
        for key, said, name in (
            ("network.vpc", wanted.network.vpc, "vpcId"),
            ("security_group", wanted.security_group, "clusterSecurityGroupId"),
        ):
            if (found := network.get(name)) != said:
                yield f"cluster.{key} is {said}, and EKS says {found}", f"write cluster.{key}: {found}"
        if mode not in _MODES:
            why = f"its authentication mode is {mode}, in which access entries are not used"
            command = f"aws eks update-cluster-config --name {there['name']} --region {self._aws.region}"
            yield why, f"let its owner run {command} --access-config authenticationMode=API_AND_CONFIG_MAP"
        if there.get("kubernetesNetworkConfig", {}).get("ipFamily") == "ipv6":
            why = "its pods and services have IPv6 addresses, and only IPv4 is supported here"
            yield why, "use an IPv4 cluster: EKS does not change the family of one"
        if not network.get("endpointPrivateAccess", False):
            why = "its endpoint cannot be reached from inside the VPC, where the functions of this deployment run"
            yield why, "let its owner enable private access of the endpoint"

    def _without_group(self) -> Iterator[tuple[str, str]]:
        if self._wanted.nodes_of is None:
            return
        eks, name = self._aws.client("eks"), neuron_nodegroup(self._experiment)
        groups = list(eks.every("list_nodegroups", "nodegroups", clusterName=self._wanted.existing))
        if name not in groups:
            why = f"it has no node group {name}, only {', '.join(groups) or 'none'}"
            other = "if its zone, purchase or node image is another, remove cluster.nodes_of"
            yield why, f"deploy {self._wanted.nodes_of} first; {other}"

    def _let_in_already(self) -> Iterator[tuple[str, str]]:
        """EKS keeps one access entry a principal; ours has the tag that all resources of our stacks have."""
        role, own = read_deployment(DEPLOYMENT).pipeline_role, self._experiment.name
        if role is None:
            return
        asked = {"clusterName": self._wanted.existing, "principalArn": role}
        found = self._aws.client("eks").find("describe_access_entry", "ResourceNotFoundException", **asked)
        if found is None or found["accessEntry"].get("tags", {}).get(TAG) == own:
            return
        rights = f"AmazonEKSEditPolicy in namespace {own} and the group {watchers_group(self._experiment)}"
        why = f"pipeline_role {role} has an access entry there already, and EKS allows one for each principal"
        yield why, f"name another role in deployment.yaml, or none, and let its owner give this one {rights}"

    def software(self) -> Finding:
        """What is there against what is declared; the device plugin and the DRA driver never both on a node."""
        with cluster_of(self._experiment, self._aws) as kubernetes:
            daemons = kubernetes.list("daemonsets", everywhere=True)
            operators = kubernetes.list("deployments", labels=_KEDA, everywhere=True) if self._scales else []
            devices = self._hands_out(kubernetes, daemons)
            there = self._found(kubernetes, daemons, devices)
        if operators:
            there.add("keda")
        wanted: list[Installed] = [name for name in INSTALLABLE if name != "keda" or self._scales]
        installs = [name for name in wanted if self._wanted.brings(name)]
        told = f"there: {', '.join(sorted(there)) or 'nothing'}; a deployment installs: {', '.join(installs) or 'nothing'}"
        if _WATCHES in installs:
            told += ", whose agents run on all nodes of the cluster, so that CloudWatch bills metrics and pods' logs of all of it"
        wrong = [
            *self._without_network(daemons),
            *self._undeclared(there, installs, wanted, self._foreign(devices)),
            *self._two_ways(daemons),
            *_cached_names(daemons),
        ]
        if "neuron" not in installs:
            wrong += self._kept_off(devices)
        if _MOUNTS not in installs:
            wrong += _cannot_mount(daemons)
        return _joined(told, [*wrong, *self._unwatched(operators)])

    @property
    def _scales(self) -> bool:
        return self._experiment.serve is not None and self._experiment.serve.scales

    @property
    def _claims(self) -> bool:
        return self._experiment.baseline.serving.allocation == "dra"

    def _hands_out(self, kubernetes: Kubernetes, daemons: Sequence[Object]) -> list[Object]:
        """What gives devices to pods in the way that the experiment asks for."""
        running = [one for one in daemons if _runs(one, _DRIVER if self._claims else _PLUGIN)]
        classes = kubernetes.list("deviceclasses") if self._claims else []
        return [*(one for one in classes if one["metadata"]["name"] == DRIVER), *running]

    def _foreign(self, devices: Sequence[Object]) -> list[str]:
        """Those that do not carry the name of our release: Helm would refuse to install beside them."""
        return [
            f"{one['kind']} {one['metadata']['name']} of {f'Helm release {release}' if release else 'no Helm release'}"
            for one in devices
            if (release := release_of(one)) != neuron_release(self._experiment)
        ]

    def _kept_off(self, devices: Sequence[Object]) -> Iterator[tuple[str, str]]:
        """A driver that the cluster has, and that does not run on our nodes."""
        running = [one for one in devices if pod_spec(one)]
        if running and not any(self._comes_to_ours(pod_spec(one)) for one in running):
            ((key, value),) = driver_label(self._experiment.baseline.serving.allocation).items()
            why = f"neuron is there, and {running[0]['metadata']['name']} does not run on our Trn2 nodes"
            yield why, f"let its owner admit nodes with the label {key}: {value}"

    def _without_network(self, daemons: Sequence[Object]) -> Iterator[tuple[str, str]]:
        plugins = [one for one in daemons if one["metadata"]["name"] in _NETWORK_PLUGINS]
        if any(self._comes_to_ours(pod_spec(one)) for one in plugins):
            return
        auto = described(self._experiment, self._aws).get("computeConfig", {}).get("enabled")
        of = ": EKS Auto Mode installs one on its own nodes only" if auto else ""
        why = f"no network plugin ({', '.join(_NETWORK_PLUGINS)}) runs on our nodes, which never become ready{of}"
        yield why, "let its owner install the add-ons vpc-cni, kube-proxy and coredns"

    def _found(
        self, kubernetes: Kubernetes, daemons: Sequence[Object], devices: Sequence[Object]
    ) -> set[Installed]:
        names = {one["metadata"]["name"] for one in daemons}
        there = {name for name, daemon in _DAEMONS.items() if daemon in names}
        if any(one["kind"] == "DeviceClass" or not self._claims for one in devices):
            there.add("neuron")
        if kubernetes.list("nodes", labels={NODE_ROLE_LABEL: role_label(self._experiment, "system")}):
            there.add("system-nodes")
        return there

    def _undeclared(
        self,
        there: set[Installed],
        installs: Sequence[Installed],
        wanted: Sequence[Installed],
        foreign: Sequence[str],
    ) -> Iterator[tuple[str, str]]:
        owner = self._wanted.nodes_of
        earlier = "; if version 0.2 of this experiment installed it, run ./trnspec teardown first"
        for name in wanted:
            ours = not foreign if name == "neuron" else "nodes" in self._standing
            if name in installs and name in there and not ours and name != "system-nodes":
                of = f" ({', '.join(foreign)})" if name == "neuron" else ""
                why = f"{name} is there, and a deployment would install it again{of}"
                yield (
                    why,
                    f"add {name} to cluster.provided{earlier if of and 'workloads' in self._standing else ''}",
                )
            elif name == "neuron" and name in self._wanted.provided and name in there and not foreign:
                why = "neuron is there by this experiment alone, and a deployment with it in cluster.provided removes it"
                yield why, "remove it there"
            elif name in self._wanted.provided and name not in there and name != _WATCHES:
                why = f"{name} is not there, although cluster.provided lists it"
                yield why, "remove it there, or let the cluster's owner install it"
            elif name not in installs and name not in there and name not in self._wanted.provided:
                came = f", or add {name} to cluster.provided where {owner} has it there"
                remedy = f"deploy {owner} first{came if name == 'system-nodes' else ''}"
                yield f"{name} is not there, although {owner} installs it", remedy

    def _unwatched(self, operators: Sequence[Object]) -> Iterator[tuple[str, str]]:
        """KEDA watches the namespaces that it is told, with commas between them, or all of them."""
        own = namespace(self._experiment)
        for one in operators:
            told = [each for container in pod_containers(one) for each in container.get("env", ())]
            value = next((each.get("value", "") for each in told if each["name"] == "WATCH_NAMESPACE"), "")
            if value and own not in (name.strip() for name in value.split(",")):
                where = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
                why = f"{where} watches {value}, and replicas in namespace {own} would not scale"
                yield why, f"let its owner add {own} to WATCH_NAMESPACE (watchNamespace of KEDA's chart)"

    def _two_ways(self, daemons: Sequence[Object]) -> Iterator[tuple[str, str]]:
        """The device plugin on nodes of ours where claims are asked for, or the DRA driver beside the plugin."""
        allocation = self._experiment.baseline.serving.allocation
        other, instead = (_PLUGIN, "device-plugin") if self._claims else (_DRIVER, "dra")
        for one in daemons:
            if _runs(one, other) and self._comes_to_ours(pod_spec(one)):
                name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
                why = f"{name} would run on our nodes beside serving.allocation {allocation}, and both hand out the same devices"
                keep = f"{NODE_ROLE_LABEL}: {role_label(self._experiment, 'neuron')}"
                use = f"set serving.allocation: {instead} and add neuron to cluster.provided"
                yield why, f"{use}, or let its owner keep it off nodes with {keep}"

    def _comes_to_ours(self, spec: Object) -> bool:
        """Whether selector and required node affinity of a pod admit our Trn2 nodes, by the labels that are known of them."""
        ours = {
            NODE_ROLE_LABEL: role_label(self._experiment, "neuron"),
            **driver_label(self._experiment.baseline.serving.allocation),
            "node.kubernetes.io/instance-type": self._experiment.instance.name,
            "eks.amazonaws.com/nodegroup": neuron_nodegroup(self._experiment),
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        if any(ours.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
            return False
        required = spec.get("affinity", {}).get("nodeAffinity", {})
        terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
        return terms is None or any(
            all(_met(one, ours) for one in term.get("matchExpressions", ())) for term in terms
        )

    def admission(self) -> Finding:
        """Whether the server takes every object, by a dry run; before the first deployment in namespace `default`."""
        own = namespace(self._experiment)
        with cluster_of(self._experiment, self._aws) as kubernetes:
            exists = kubernetes.get("namespace", own) is not None
            if exists and "workloads" not in self._standing:
                why = f"namespace {own} exists, and no stack of this experiment made it"
                return finding(why, "give the experiment another name, or let its owner remove the namespace")
            place = own if exists else "default"
            objects = self._objects(place)
            objects += _pods(objects)
            refused, said = kubernetes.refusals(objects, namespace=place)
        if refused:
            why = f"the server does not take {', '.join(refused)}: {said}"
            return finding(why, "let the cluster's owner admit it, or change what it names")
        where = "" if exists else f", asked in namespace default because {own} does not exist yet"
        return fine(f"the server would take all {count(len(objects), 'object')}, pods included{where}")

    def _objects(self, place: str) -> list[dict[str, Any]]:
        """What a deployment applies, in this namespace."""
        assets = f"cdk-hnb659fds-container-assets-{self._aws.account}-{self._aws.region}:preflight"
        image = f"{self._aws.account}.dkr.ecr.{self._aws.region}.amazonaws.com/{assets}"
        values = {"AWS_ACCOUNT": self._aws.account, "BENCHMARK_IMAGE": image, "LMEVAL_IMAGE": image}
        files = read(self._experiment, ROOT / "manifests")
        objects = fill((one for file in files for one in file.objects), with_tags(values))
        for one in objects:
            if "namespace" in one["metadata"]:
                one["metadata"] = {**one["metadata"], "namespace": place}
        return objects


def _pods(objects: Sequence[Object]) -> list[dict[str, Any]]:
    """What controllers make of the objects: a policy on pods does not look at a Deployment. Accounts and priorities come with
    the deployment; a pod that names one which does not exist yet is refused for that."""
    found = []
    for one in objects:
        if spec := pod_spec(one):
            metadata = {
                **pod_template(one).get("metadata", {}),
                **{key: one["metadata"][key] for key in _PLACE},
            }
            left = {key: spec[key] for key in spec if key not in ("serviceAccountName", "priorityClassName")}
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": left})
    return found


_PLACE = ("name", "namespace")
_KEDA = {"app.kubernetes.io/name": "keda-operator"}


def _runs(daemon: Object, image: str) -> bool:
    return any(image in str(one.get("image")) for one in pod_containers(daemon))


def _cannot_mount(daemons: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Volumes need version 2 of the driver, which mounts with the identity of the pod that asks, on tainted nodes too."""
    for one in daemons:
        if one["metadata"]["name"] != _DAEMONS[_MOUNTS]:
            continue
        images = [str(container.get("image")) for container in pod_containers(one)]
        versions = [int(found[1]) for image in images if (found := _DRIVER_VERSION.search(image))]
        if versions and max(versions) < 2:
            why = f"{_MOUNTS} has version {max(versions)}, whose volumes do not take the identity of a pod"
            yield why, "let its owner install version 2"
        if not any(
            taint.get("operator") == "Exists" and taint.get("key") in (None, "", NEURON_TAINT_KEY)
            for taint in pod_spec(one).get("tolerations", ())
        ):
            why = f"{_MOUNTS} does not tolerate {NEURON_TAINT_KEY}, so nothing is mounted on our Trn2 nodes"
            yield why, "let its owner set node.tolerateAllTaints: true"


def _cached_names(daemons: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """NodeLocal DNSCache under an address that our network policies do not know."""
    for one in daemons:
        arguments = [str(word) for container in pod_containers(one) for word in container.get("args", ())]
        if _runs(one, "k8s-dns-node-cache") and not any(LOCAL_DNS in word for word in arguments):
            why = f"{one['metadata']['name']} (NodeLocal DNS) does not answer at {LOCAL_DNS}, the one address of it that our network policies admit"
            yield why, f"let its owner add {LOCAL_DNS} to -localip"


def _met(expression: Object, labels: Mapping[str, str]) -> bool:
    own, values = labels.get(expression["key"]), expression.get("values", ())
    met = {
        "In": own in values,
        "NotIn": own not in values,
        "Exists": own is not None,
        "DoesNotExist": own is None,
    }
    return met.get(expression["operator"], False)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _joined(told: str, wrong: Sequence[tuple[str, str]]) -> Finding:
    """One finding for all that is wrong, else what was found."""
    if not wrong:
        return fine(told)
    return finding(f"{told}; " + "; ".join(why for why, _ in wrong), "; ".join(what for _, what in wrong))
