"""Compiled artifacts: a server starts from a finished one or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod
from cdk8s_charts.command import artifact_path
from experiment.artifact import artifact_key

if TYPE_CHECKING:
    from experiment.arms import Arm

MARKER = "COMPLETE"
"""Written last, holding the artifact key: its presence says that everything else was written before."""
FILES = ("neuron_config.json", "model.pt")
"""What NxD Inference leaves in an artifact beside the sharded weights; without them it would compile in silence."""
_CHECK = f"""\
folder=$1; key=$2; found=
refuse() {{ echo "artifact $key: $1" >&2; exit 1; }}
[ -f "$folder/{MARKER}" ] || refuse "missing or unfinished, $folder/{MARKER} does not exist; compile this arm first"
read -r found < "$folder/{MARKER}" || :
[ "$found" = "$key" ] || refuse "$folder was made for key $found; compile this arm"
for file in {" ".join(FILES)}; do
  [ -s "$folder/$file" ] || refuse "$folder/$file is missing although marked complete; delete the folder and compile again"
done
echo "artifact $key: complete"
"""


def marker_check(arm: Arm) -> dict[str, Any]:
    """Init container that ends the pod in one line unless the artifact is complete and this arm's own.

    Without it vLLM 0.9.1 would answer a missing artifact by compiling for tens of minutes, into a read-only mount.
    """
    return {
        "name": "check-artifact",
        "image": arm.runtime.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _CHECK, "check-artifact", artifact_path(arm), artifact_key(arm)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"cpu": "100m", "memory": "64Mi"},
        },
        "securityContext": pod.container_security(writable_root=False),
    }
