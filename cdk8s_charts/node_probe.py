"""Check on a Trn2 node what until then is only read in documentation: one JSON line a check on stdout, exit 1 when one fails.

Runs in the Neuron image with the standard library alone, under the security context, claim, mounts and service account
of an arm. `expect` is JSON: see `Expected`. Written for Python 3.10 and later.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
NO_FRAMEWORK = 1
"""`NRT_FRAMEWORK_TYPE_NO_FW` of the Neuron runtime's nrt.h."""


@dataclass(frozen=True)
class Expected:
    """What the experiment was rendered for."""

    devices: int
    logical_cores: int
    scratch_gib: float
    mounts: tuple[str, ...]
    driver_at_least: str
    driver_at_most: str
    """As exact as it is written: `2.28` is every 2.28. Both are empty where nothing is known."""
    tested_driver: str
    """The driver that AWS tested with the image's runtime; empty where that was not read."""
    without: tuple[str, ...]
    """Variables with which the image's server does not start."""
    pod_security: str
    """Level of the experiment: `restricted`, `baseline`, `image-defaults` or `ipc-lock`."""

    @classmethod
    def read(cls, text: str) -> Expected:
        """Read JSON; unknown keys are an error of the renderer."""
        data = json.loads(text)
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


@dataclass(frozen=True)
class Machine:
    """Where the checks look; a test gives them another root."""

    root: Path
    environment: Mapping[str, str]
    runtime_library: str


class Failed(Exception):
    """A check failed: what was found, and what to do."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.found, self.remedy = found, remedy


class Doubtful(Failed):
    """A check passed, but what it found is not known to work."""


def device_files(machine: Machine, expected: Expected) -> str:
    """The claim's devices are there, and this user may open them."""
    devices = sorted(path for path in (machine.root / "dev").glob("neuron*") if path.name[6:].isdigit())
    if len(devices) != expected.devices:
        raise Failed(
            f"{len(devices)} devices in /dev, the claim asks for {expected.devices}",
            "look at the claim with kubectl describe resourceclaim; the DRA driver prepared another set",
        )
    closed = [path.name for path in devices if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        raise Failed(
            f"user {os.getuid()} may not open {', '.join(closed)}",
            _less_security(expected),
        )
    return f"{len(devices)} devices, readable and writable for user {os.getuid()}"


def logical_cores(machine: Machine, expected: Expected) -> str:
    """The runtime counts as many logical NeuronCores as the arm shards over, though the pod does not tell it how many.

    A server's pod sets `NEURON_LOGICAL_NC_CONFIG`, by which the runtime then counts whatever claim and node say. This pod
    sets no such variable, so the count is the claim's, the node's, or the runtime's own default: 2 to 1 on Trainium2.
    """
    library = _runtime(machine)
    count = ctypes.c_uint32(0)
    status = library.nrt_get_visible_vnc_count(ctypes.byref(count))
    if status != 0:
        raise Failed(f"nrt_get_visible_vnc_count ended with status {status}", _wrong_pair(expected))
    found = f"{count.value} logical NeuronCores"
    if count.value != expected.logical_cores:
        raise Failed(
            f"{found}, the arm shards over {expected.logical_cores}",
            "serving.logical_nc_config did not reach the devices; with allocation: device-plugin the node's user data "
            "sets it, with dra the claim: kubectl describe resourceclaim, and the log of the DRA driver on the node",
        )
    return found


def runtime_starts(machine: Machine, expected: Expected) -> str:
    """Driver and runtime agree, and the devices can be opened under this security context."""
    library = _runtime(machine)
    status = library.nrt_init(NO_FRAMEWORK, b"", b"")
    if status != 0:
        raise Failed(f"nrt_init ended with status {status}", _wrong_pair(expected))
    library.nrt_close()
    return "the runtime opened the devices and closed them"


def driver_version(machine: Machine, expected: Expected) -> str:
    """The image's runtime starts with the node's driver: it refuses one that is too old, and one that is too new."""
    path = machine.root / "sys/module/neuron/version"
    if not path.is_file():
        raise Failed("no Neuron driver is loaded", "use the AL2023 Neuron AMI for the node group")
    found = path.read_text(encoding="utf-8").strip()
    oldest, newest = _numbers(expected.driver_at_least), _numbers(expected.driver_at_most)
    bound, age, other = "", "", ""
    if oldest and _numbers(found) < oldest:
        bound, age, other = f"{expected.driver_at_least} or later", "a newer", "an older"
    elif newest and _numbers(found)[: len(newest)] > newest:
        bound, age, other = f"{expected.driver_at_most} or earlier", "an older", "a newer"
    if bound:
        raise Failed(
            f"driver {found}, the image's runtime wants {bound}",
            f"the node needs {age} image, with driver {bound}; {_NODE_IMAGE}, or give the arm {other} runtime",
        )
    tested = expected.tested_driver
    if not tested:
        return f"driver {found}; the driver that AWS tested with the image's runtime was not read"
    both = f"driver {found}; AWS tested the image's runtime with driver {tested}"
    if _numbers(found)[: len(_numbers(tested))] != _numbers(tested):
        raise Doubtful(both, "other pairs can work, by AWS; if the runtime fails, start with this")
    return both


def variables(machine: Machine, expected: Expected) -> str:
    """Nothing gives the pod a variable with which its server does not start: the claim may (CDI), or the image."""
    there = [
        f"{name}={machine.environment[name]}" for name in expected.without if name in machine.environment
    ]
    if there:
        raise Failed(
            f"the pod has {', '.join(there)}, with which the image's server does not start",
            "no object of this experiment sets it: look at the claim (kubectl describe resourceclaim) and the image; with "
            "serving.allocation: device-plugin the DRA driver sets nothing",
        )
    return f"{', '.join(expected.without)}: not set" if expected.without else "this image refuses none"


def scratch_space(machine: Machine, expected: Expected) -> str:
    """/scratch is as large as compiling needs, and takes a MiB that is read back."""
    folder = machine.root / "scratch"
    try:
        free = shutil.disk_usage(folder).free / GIB
    except OSError as error:
        raise Failed(
            f"/scratch: {error.strerror}", "the pod mounts no scratch; render the manifests again"
        ) from None
    if free < expected.scratch_gib:
        raise Failed(
            f"/scratch has {free:.0f} GiB free, {expected.scratch_gib:.0f} are needed",
            "the node's NVMe is not its ephemeral storage: NodeConfig localStorage RAID0 is missing",
        )
    return f"/scratch has {free:.0f} GiB free, {_written_and_read(folder)}"


def mounts_readable(machine: Machine, expected: Expected) -> str:
    """Mountpoint lists and reads with the pod's own identity. A readable folder of the image is not a mount."""
    said, mounted = [], _mounted(machine)
    for mount in expected.mounts:
        folder = machine.root / mount.lstrip("/")
        try:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            if files:
                with files[0].open("rb") as file:
                    file.read(2**20)
        except OSError as error:
            raise Failed(
                f"{mount}: {error.strerror}",
                "look at the Mountpoint pod in namespace mount-s3; most often the role of the service account",
            ) from None
        if not mounted.get(mount, "").startswith("fuse"):
            raise Failed(
                f"{mount} is not mounted by Mountpoint ({mounted.get(mount, 'no mount there')})",
                "kubectl describe the pod and its PersistentVolumeClaims; look at the Mountpoint pod in namespace mount-s3",
            )
        said.append(
            f"{mount}: {len(files)} files" if files else f"{mount}: mounted, empty, so nothing was read"
        )
    return ", ".join(said)


def pod_identity(machine: Machine, _expected: Expected) -> str:
    """The Pod Identity agent hands out credentials of this service account."""
    address = machine.environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    token = machine.environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "")
    if not address or not token:
        raise Failed(
            "no Pod Identity variables in the environment",
            "the association came after the pod, or the eks-pod-identity-agent add-on is absent; delete the pod",
        )
    try:
        authorization = Path(token).read_text(encoding="utf-8").strip()
        request = urllib.request.Request(address, headers={"Authorization": authorization})
        with urllib.request.urlopen(request, timeout=10) as answer:
            credentials = json.loads(answer.read())
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise Failed(
            f"the agent at {address} gives no credentials ({error})",
            "look at the eks-pod-identity-agent DaemonSet, and at the NetworkPolicy's 169.254.170.23:80",
        ) from None
    if "AccessKeyId" not in credentials:
        raise Failed("the agent's answer holds no credentials", "look at the role of the service account")
    return f"credentials until {credentials.get('Expiration', 'an unstated time')}"


CHECKS: dict[str, Callable[[Machine, Expected], str]] = {
    "device-files": device_files,
    "logical-cores": logical_cores,
    "driver-version": driver_version,
    "variables": variables,
    "runtime-starts": runtime_starts,
    "scratch-space": scratch_space,
    "mounts-readable": mounts_readable,
    "pod-identity": pod_identity,
}
_NODE_IMAGE = (
    "experiment check prints the one that serves: deploy the experiment again, then start a new node; if the node has "
    "that image already, correct its driver in src/trnspec/experiment/catalogue/runtimes.py"
)


def run_checks(machine: Machine, expected: Expected) -> Iterator[dict[str, Any]]:
    """Yield one result a check; a check that breaks in an unforeseen way has failed."""
    for name, check in CHECKS.items():
        try:
            yield {"check": name, "passed": True, "found": check(machine, expected), "remedy": ""}
        except Failed as failure:
            passed = isinstance(failure, Doubtful)
            yield {"check": name, "passed": passed, "found": failure.found, "remedy": failure.remedy}
        except Exception as error:  # whatever the node does, the other checks still run
            found = f"{type(error).__name__}: {error}"
            yield {"check": name, "passed": False, "found": found, "remedy": "unforeseen; please report it"}


def main(argv: list[str] | None = None) -> int:
    """Print the results; exit 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("expected", type=Expected.read, help="JSON: what the experiment was rendered for")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.add_argument("--runtime-library", default="libnrt.so.1", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    machine = Machine(options.root, os.environ, options.runtime_library)
    passed = True
    for result in run_checks(machine, options.expected):
        passed = passed and result["passed"]
        print(json.dumps(result), flush=True)
    return 0 if passed else 1


_LESS_SECURITY = {
    "restricted": "set serving.advanced.pod_security: baseline, whose containers keep the image's user",
    "baseline": "set serving.advanced.pod_security: image-defaults, whose containers keep the container runtime's capabilities",
}
"""For each level of pod security the next one, which takes less from a container."""


def _less_security(expected: Expected) -> str:
    nothing = "nothing but privilege is refused at this level, so look at the device plugin or the DRA driver"
    return _LESS_SECURITY.get(expected.pod_security, nothing)


def _wrong_pair(expected: Expected) -> str:
    remedy = _less_security(expected)
    if expected.pod_security in ("baseline", "image-defaults"):
        remedy = "set serving.advanced.pod_security: ipc-lock, whose containers may also lock memory, as AWS's instructions for containers let them"
    return f"driver and runtime do not fit (compare check driver-version), or the security context keeps the devices away: {remedy}"


def _mounted(machine: Machine) -> dict[str, str]:
    """Return the type of the file system at each mount point, as the kernel lists them (proc(5), mountinfo)."""
    found = {}
    for line in (machine.root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place, _, source = line.partition(" - ")
        found[place.split()[4]] = source.split()[0]
    return found


def _runtime(machine: Machine) -> ctypes.CDLL:
    names = (machine.runtime_library, f"/opt/aws/neuron/lib/{machine.runtime_library}")
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Failed(f"no {machine.runtime_library} in this image", "the image is not a Neuron image")


def _written_and_read(folder: Path) -> str:
    path, block = folder / f".proof-{os.getpid()}", os.urandom(2**20)
    try:
        path.write_bytes(block)
        if path.read_bytes() != block:
            raise Failed("/scratch gives back other bytes than were written", "replace the node")
    except OSError as error:
        raise Failed(f"/scratch: {error.strerror}", "the pod may not write there; look at fsGroup") from None
    finally:
        path.unlink(missing_ok=True)
    return "a MiB was written and read"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])


if __name__ == "__main__":
    sys.exit(main())
