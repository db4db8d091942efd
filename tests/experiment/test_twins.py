"""Rules with a twin: an experiment that passes, and the same with one mistake, refused in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from experiment import InvalidExperiment, load
from tests.experiment.edits import Edit, both, put, remove

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Edit], Path]

SPECULATION = "arms.1.speculation"
RESERVATION: dict[str, Any] = {
    "kind": "reservation",
    "reservation_id": "cr-0123456789abcdef0",
    "availability_zone": "us-east-2b",
}
BLOCK = RESERVATION | {"kind": "capacity-block", "ends_at": "2026-12-05T11:30:00Z"}
LLAMA = both(
    put("target.model", "meta-llama/Llama-3.3-70B-Instruct"),
    put(f"{SPECULATION}.draft.model", "meta-llama/Llama-3.2-1B-Instruct"),
    put("weights", {"token_secret": "hf-token"}),
)
HEAD = {"model": "somebody/head", "head_for": "meta-llama/Llama-3.3-70B-Instruct"}
EAGLE = both(LLAMA, put(f"{SPECULATION}.mode", "eagle"), put(f"{SPECULATION}.draft", HEAD))
PLUGIN_EAGLE3 = both(EAGLE, put("runtime", "nxdi-vllm-0.16"), put(f"{SPECULATION}.mode", "eagle3"))
NATIVE = both(
    put("runtime", "native-vllm-0.29"),
    put("serving.artifact_source", "scratch"),
    put(f"{SPECULATION}.mode", "eagle3"),
    put(f"{SPECULATION}.draft", {"model": "thoughtworks/Qwen3-32B-Eagle3", "head_for": "Qwen/Qwen3-32B"}),
)
MEDUSA = both(
    LLAMA,
    put("serving.max_num_seqs", 1),
    lambda data: data["arms"].append(
        {
            "name": "medusa",
            "speculation": {
                "mode": "medusa",
                "draft": HEAD | {"head_layers": 4},
                "num_speculative_tokens": 4,
            },
        }
    ),
)
BALANCED = both(
    put("serving.api_key_secret", "vllm-key"),
    put(
        "serve",
        {
            "arm": "qwen-sd-vllm",
            "certificate_arn": "arn:aws:acm:us-east-2:123456789012:certificate/"
            "0a1b2c3d-0000-4444-8888-0123456789ab",
            "client_cidrs": ["10.20.0.0/16"],
        },
    ),
)
LAB = both(
    put("target.model", "lab/target"),
    put("runtime", "vllm-cpu-0.32"),
    put("serving", {"devices": 0, "max_model_len": 1024}),
    put("cluster", {"instance": "lab-cpu"}),
    put(f"{SPECULATION}.mode", "draft"),
    put(f"{SPECULATION}.draft.model", "lab/draft"),
    remove("benchmark.lm_eval"),
)
SMALL = both(
    put("serving.devices", 1),
    put("serving.tensor_parallel", 4),
    put("serving.allocation", "device-plugin"),
    put("cluster.instance", "trn2.3xlarge"),
    put("cluster.region", "ap-southeast-4"),
    put("cluster.availability_zones", ["ap-southeast-4a", "ap-southeast-4b"]),
)
NOTHING: Edit = both()
K = f"{SPECULATION}.num_speculative_tokens"
K_PATH = "arms[1].speculation.num_speculative_tokens"
MODE_PATH = "arms[1].speculation.mode"

TWINS: dict[str, tuple[Edit, Edit, str, str]] = {
    "reservation id on demand": (
        put("cluster.capacity", RESERVATION),
        put("cluster.capacity", {"reservation_id": "cr-0123456789abcdef0"}),
        "cluster.capacity.reservation_id",
        "on-demand capacity has none",
    ),
    "zone on demand": (
        NOTHING,
        put("cluster.capacity", {"availability_zone": "us-east-2b"}),
        "cluster.capacity.availability_zone",
        "on-demand capacity has none",
    ),
    "reservation without a zone": (
        put("cluster.capacity", RESERVATION),
        remove("cluster.capacity.availability_zone"),
        "cluster.capacity.availability_zone",
        "kind reservation needs it",
    ),
    "reservation without an id": (
        put("cluster.capacity", RESERVATION),
        remove("cluster.capacity.reservation_id"),
        "cluster.capacity.reservation_id",
        "cr-0123456789abcdef0",
    ),
    "end without a block": (
        put("cluster.capacity", BLOCK),
        put("cluster.capacity.kind", "reservation"),
        "cluster.capacity.ends_at",
        "only a capacity block has an end",
    ),
    "block without an end": (
        put("cluster.capacity", BLOCK),
        remove("cluster.capacity.ends_at"),
        "cluster.capacity.ends_at",
        "kind capacity-block needs it",
    ),
    "block without a reservation": (
        put("cluster.capacity", BLOCK),
        remove("cluster.capacity.reservation_id"),
        "cluster.capacity.reservation_id",
        "kind capacity-block needs it",
    ),
    "end in local time": (
        put("cluster.capacity", BLOCK),
        put("cluster.capacity.ends_at", "2026-12-05T11:30:00+01:00"),
        "cluster.capacity.ends_at",
        "no instant in UTC",
    ),
    "end on no day": (
        put("cluster.capacity", BLOCK),
        put("cluster.capacity.ends_at", "2026-13-05T11:30:00Z"),
        "cluster.capacity.ends_at",
        "no instant in UTC",
    ),
    "reserved zone of another region": (
        both(put("cluster.capacity", RESERVATION), put("cluster.capacity.availability_zone", "us-east-2c")),
        put("cluster.capacity.availability_zone", "us-west-2a"),
        "cluster.capacity.availability_zone",
        "no zone of us-east-2; use one of us-east-2a, us-east-2b, us-east-2c",
    ),
    "a zone that its region lacks": (
        put("cluster.availability_zones", ["us-east-2c", "us-east-2a"]),
        put("cluster.availability_zones", ["us-east-2a", "us-east-2f"]),
        "cluster.availability_zones[1]",
        "is no zone of us-east-2",
    ),
    "malformed reservation": (
        put("cluster.capacity", RESERVATION),
        put("cluster.capacity.reservation_id", "r-1"),
        "cluster.capacity.reservation_id",
        "has another form; write the id that EC2 gave the reservation or block, as in cr-0123456789abcdef0",
    ),
    "more nodes than the most": (
        both(put("cluster.nodes", 2), put("cluster.max_nodes", 2)),
        put("cluster.max_nodes", 1),
        "cluster.nodes",
        "above cluster.max_nodes 1",
    ),
    "more gateways than zones": (
        put("cluster.network", {"nat_gateways": 2}),
        put("cluster.network.nat_gateways", 3),
        "cluster.network.nat_gateways",
        "one gateway a zone",
    ),
    "no way out": (
        put("cluster.network", {"nat_gateways": 1}),
        put("cluster.network.nat_gateways", 0),
        "cluster.network.nat_gateways",
        "greater than or equal to 1",
    ),
    "an hour that is none": (
        put("cluster.off_at_utc", "23:59"),
        put("cluster.off_at_utc", "24:00"),
        "cluster.off_at_utc",
        'has another form; write hour and minute in UTC, as in "22:00"',
    ),
    "small instance where it was not seen": (
        SMALL,
        both(
            put("cluster.region", "us-east-2"),
            put("cluster.availability_zones", ["us-east-2a", "us-east-2b"]),
        ),
        "cluster.region",
        "trn2.3xlarge was not seen there",
    ),
    "more devices than the small instance has": (
        SMALL,
        both(put("serving.devices", 4), put("serving.tensor_parallel", 16)),
        "serving.devices",
        "use one of 1",
    ),
    "claims where no group is published": (
        SMALL,
        put("serving.allocation", "dra"),
        "serving.allocation",
        "use `device-plugin`",
    ),
    "gated model without a token": (
        LLAMA,
        remove("weights"),
        "target.model",
        "no `weights.token_secret`",
    ),
    "gated draft without a token": (
        put("weights", {"token_secret": "hf-token"}),
        put("weights.token_secret", "HF_TOKEN"),
        "weights.token_secret",
        "has another form; write a Secret's name",
    ),
    "lab runtime on a Neuron instance": (
        LAB,
        both(put("cluster.instance", "trn2.48xlarge"), put("serving.devices", 8)),
        "cluster.instance",
        "serves in the lab only; use lab-cpu",
    ),
    "Neuron runtime on the lab's machine": (
        LAB,
        both(
            put("runtime", "nxdi-vllm-0.9.1"),
            put("target.model", "Qwen/Qwen3-32B"),
            put(f"{SPECULATION}.mode", "fused"),
            put(f"{SPECULATION}.draft.model", "Qwen/Qwen3-1.7B"),
        ),
        "cluster.instance",
        "needs Trainium2",
    ),
    "lab target in a cluster": (
        NOTHING,
        both(put("target.model", "lab/target"), put(f"{SPECULATION}.draft.model", "lab/draft")),
        "target.model",
        "exists nowhere else",
    ),
    "devices on the lab's machine": (
        LAB,
        put("serving.devices", 1),
        "serving.devices",
        "has no Neuron device",
    ),
    "sharding on the lab's machine": (
        LAB,
        put("serving.tensor_parallel", 2),
        "serving.tensor_parallel",
        "no NeuronCore",
    ),
    "nodes for the lab": (LAB, put("cluster.nodes", 1), "cluster.nodes", "the lab's own machine"),
    "quality pod in the lab": (
        LAB,
        put("benchmark.lm_eval", {"limit": 10}),
        "benchmark.lm_eval",
        "runs as a pod",
    ),
    "fused in the lab": (LAB, put(f"{SPECULATION}.mode", "fused"), MODE_PATH, "use mode `draft`"),
    "no token drafted in the lab": (
        both(LAB, put(K, 1)),
        put(K, 0),
        K_PATH,
        "at least one token must be drafted",
    ),
    "window above an answer where a step yields one more": (
        both(LAB, put("benchmark.max_tokens", 8)),
        put("benchmark.max_tokens", 7),
        K_PATH,
        "at most k+1 tokens come out of a step",
    ),
    "draft model on the plugin": (
        PLUGIN_EAGLE3,
        both(
            put(f"{SPECULATION}.mode", "fused"),
            put(f"{SPECULATION}.draft", {"model": "meta-llama/Llama-3.2-1B-Instruct"}),
        ),
        MODE_PATH,
        'a draft model is "only supported on the legacy Neuron fork of vLLM v0"',
    ),
    "EAGLE for Qwen3 on the plugin": (
        PLUGIN_EAGLE3,
        both(
            put("target.model", "Qwen/Qwen3-32B"),
            put(f"{SPECULATION}.draft.head_for", "Qwen/Qwen3-32B"),
        ),
        MODE_PATH,
        "none for Qwen3",
    ),
    "DFlash on the plugin": (
        PLUGIN_EAGLE3,
        put(f"{SPECULATION}.mode", "dflash"),
        MODE_PATH,
        "native vLLM Neuron plugin only",
    ),
    "window of one on EAGLE": (EAGLE, put(K, 1), K_PATH, "needs 2 at least"),
    "draft model on the native plugin": (
        NATIVE,
        both(put(f"{SPECULATION}.mode", "fused"), put(f"{SPECULATION}.draft", {"model": "Qwen/Qwen3-1.7B"})),
        MODE_PATH,
        "not supported by the native plugin",
    ),
    "EAGLE v1 on the native plugin": (
        NATIVE,
        put(f"{SPECULATION}.mode", "eagle"),
        MODE_PATH,
        "EAGLE3 heads only",
    ),
    "two windows of one DFlash head": (
        both(
            NATIVE, LLAMA, put(f"{SPECULATION}.mode", "dflash"), put(f"{SPECULATION}.draft", HEAD), put(K, 9)
        ),
        put(K, [9, 15]),
        f"{K_PATH}[1]",
        "drafts the block that it was trained with, and qwen-sd-vllm-k9 drafts 9 tokens with the same head",
    ),
    "compile cache on a mounted bucket": (
        NATIVE,
        put("serving.artifact_source", "mount"),
        "serving.artifact_source",
        "use `scratch`",
    ),
    "no mode": (NOTHING, put(f"{SPECULATION}.mode", "lookahead"), MODE_PATH, "known: fused, draft"),
    "runtime of one arm unknown": (
        put("arms.1.runtime", "nxdi-vllm-0.9.1"),
        put("arms.1.runtime", "nxdi-vllm-9.9"),
        "arms[1].runtime",
        "did you mean nxdi-vllm-0.9.1?",
    ),
    "mode that the arm's own runtime lacks": (
        put("arms.1.runtime", "nxdi-vllm-0.9.1"),
        put("arms.1.runtime", "nxdi-vllm-0.16"),
        MODE_PATH,
        "runtime nxdi-vllm-0.16 cannot do it",
    ),
    "a plain model where a head is needed": (
        EAGLE,
        put(f"{SPECULATION}.draft", {"model": "meta-llama/Llama-3.2-1B-Instruct"}),
        "arms[1].speculation.draft.model",
        "`head_for: meta-llama/Llama-3.3-70B-Instruct`",
    ),
    "a head where a model is needed": (
        EAGLE,
        put(f"{SPECULATION}.mode", "fused"),
        "arms[1].speculation.draft.head_for",
        "drafts with a model of its own",
    ),
    "a head for another target": (
        EAGLE,
        put(f"{SPECULATION}.draft.head_for", "Qwen/Qwen3-32B"),
        "arms[1].speculation.draft.head_for",
        "reads the hidden states",
    ),
    "a head for nobody": (
        EAGLE,
        put(f"{SPECULATION}.draft.head_for", "Qwen/Qwen3-33B"),
        "arms[1].speculation.draft.head_for",
        "did you mean Qwen/Qwen3-32B?",
    ),
    "a head that cannot be fetched": (
        EAGLE,
        put(f"{SPECULATION}.draft.model", "my head"),
        "arms[1].speculation.draft.model",
        "write it as owner/name",
    ),
    "unknown draft": (
        NOTHING,
        put(f"{SPECULATION}.draft.model", "Qwen/Qwen3-1.8B"),
        "arms[1].speculation.draft.model",
        "did you mean Qwen/Qwen3-1.7B?",
    ),
    "Medusa in batches": (
        MEDUSA,
        put("serving.max_num_seqs", 4),
        "serving.max_num_seqs",
        "one request at a time",
    ),
    "more tokens than Medusa heads": (
        MEDUSA,
        put("arms.2.speculation.num_speculative_tokens", 5),
        "arms[2].speculation.num_speculative_tokens",
        "the draft declares 4",
    ),
    "nothing to compare but a batch Job": (
        MEDUSA,
        remove("arms.1"),
        MODE_PATH,
        "nothing is left to compare",
    ),
    "unfused for Qwen3": (
        both(
            MEDUSA,
            put(
                "arms.2.speculation",
                {
                    "mode": "vanilla",
                    "draft": {"model": "meta-llama/Llama-3.2-1B-Instruct"},
                    "num_speculative_tokens": 5,
                },
            ),
        ),
        both(
            put("target.model", "Qwen/Qwen3-32B"),
            put("arms.1.speculation.draft.model", "Qwen/Qwen3-1.7B"),
            put("arms.2.speculation.draft.model", "Qwen/Qwen3-1.7B"),
        ),
        "arms[2].speculation.mode",
        "documented unfused for Llama",
    ),
    "arm's name too long for its Jobs": (
        put("arms.1.name", "a" * 54),
        put("arms.1.name", "a" * 55),
        "arms[1].name",
        "use 54 at most",
    ),
    "served arm unknown": (
        put("serve", {"arm": "qwen-sd-vllm"}),
        put("serve.arm", "qwen-sd-vlm"),
        "serve.arm",
        "did you mean qwen-sd-vllm?",
    ),
    "served arm that is a batch Job": (
        both(MEDUSA, put("serve", {"arm": "qwen-sd-vllm"})),
        put("serve.arm", "medusa"),
        "serve.arm",
        "no arm of this experiment that serves",
    ),
    "more replicas than fit": (
        put("serve", {"arm": "qwen-sd-vllm", "replicas": 2}),
        put("serve.replicas", 3),
        "serve.replicas",
        "hold 2 arms",
    ),
    "more replicas in the end than fit": (
        put("serve", {"arm": "qwen-sd-vllm", "replicas": 1, "max_replicas": 2}),
        put("serve.max_replicas", 3),
        "serve.max_replicas",
        "hold 2 arms",
    ),
    "fewer replicas in the end than at first": (
        put("serve", {"arm": "qwen-sd-vllm", "replicas": 2, "max_replicas": 2}),
        put("serve.max_replicas", 1),
        "serve.max_replicas",
        "below serve.replicas 2",
    ),
    "load balancer without a key": (
        BALANCED,
        remove("serving.api_key_secret"),
        "serving.api_key_secret",
        "anybody on those networks",
    ),
    "load balancer for nobody": (
        BALANCED,
        remove("serve.client_cidrs"),
        "serve.client_cidrs",
        "would let nobody in",
    ),
    "load balancer for everybody": (
        BALANCED,
        put("serve.client_cidrs", ["0.0.0.0/0"]),
        "serve.client_cidrs[0]",
        "opens the load balancer to everybody",
    ),
    "callers without a load balancer": (
        BALANCED,
        remove("serve.certificate_arn"),
        "serve.client_cidrs",
        "no load balancer for them",
    ),
    "certificate of another region": (
        BALANCED,
        put("serve.certificate_arn", "arn:aws:acm:us-east-1:123456789012:certificate/a-b"),
        "serve.certificate_arn",
        "takes certificates of us-east-2 only",
    ),
    "certificate of another service": (
        BALANCED,
        put("serve.certificate_arn", "arn:aws:iam::123456789012:server-certificate/x"),
        "serve.certificate_arn",
        "is no ARN of a certificate in ACM",
    ),
    "arm with the service's name": (
        put("arms.1.name", "qwen3-32b-servic"),
        put("arms.1.name", "qwen3-32b-service"),
        "arms[1].name",
        "is the promoted service's name",
    ),
    "quality without a question": (
        put("benchmark.lm_eval", {"limit": 1}),
        put("benchmark.lm_eval.limit", 0),
        "benchmark.lm_eval.limit",
        "greater than or equal to 1",
    ),
    "arm with the quality check's name": (
        NOTHING,
        put("arms.1.name", "qwen-lmeval"),
        "arms[1].name",
        "is the quality check's name",
    ),
    "both ways of holding devices": (
        put("serving.allocation", "device-plugin"),
        put("serving.allocation", "both"),
        "serving.allocation",
        "'dra' or 'device-plugin'",
    ),
    "a security level that is none": (
        put("serving.pod_security", "restricted"),
        put("serving.pod_security", "privileged"),
        "serving.pod_security",
        "'image-defaults', 'baseline' or 'restricted'",
    ),
    "a date without quotes": (
        put("cluster.capacity", BLOCK),
        put("cluster.capacity.ends_at", 20261205),
        "cluster.capacity.ends_at",
        "put it in quotes",
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_twin_passes_and_the_mistake_is_one_line(name: str, variation: Variation) -> None:
    good, mistake, path, words = TWINS[name]
    load(variation(good))
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(good, mistake)))
    assert [problem.path for problem in caught.value.problems] == [path], caught.value.lines
    (line,) = caught.value.lines
    assert words in line
    assert "; " in line
    assert "\n" not in line
