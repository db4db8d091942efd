"""Every rule that refuses an experiment: one line that names the place, the value, the reason and the remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiment import InvalidExperiment, load
from experiment.catalogue.instances import ZONES
from experiment.checks.names import longest_name
from experiment.forms import FORMS
from experiment.model import ExperimentFile
from experiment.naming import bucket
from tests.experiment.edits import BLOCK, EXPECT, NATIVE, SPECULATION, Edit, Variation, both, combined, put
from tests.experiment.more_refusals import MORE

TABLE = """
reservation id on demand | RESERVATION | {cluster.capacity: {reservation_id: cr-0123456789abcdef0}} | cluster.capacity.reservation_id | on-demand capacity has none
zone on demand | | {cluster.capacity: {availability_zone: us-east-2b}} | cluster.capacity.availability_zone | on-demand capacity has none
reservation without a zone | RESERVATION | {-cluster.capacity.availability_zone} | cluster.capacity.availability_zone | kind reservation needs it
reservation without an id | RESERVATION | {-cluster.capacity.reservation_id} | cluster.capacity.reservation_id | cr-0123456789abcdef0
end without a block | BLOCK | {cluster.capacity.kind: reservation} | cluster.capacity.ends_at | only a capacity block has an end
block without an end | BLOCK | {-cluster.capacity.ends_at} | cluster.capacity.ends_at | kind capacity-block needs it
block without a reservation | BLOCK | {-cluster.capacity.reservation_id} | cluster.capacity.reservation_id | kind capacity-block needs it
end in local time | BLOCK | {cluster.capacity.ends_at: '2026-12-05T11:30:00+01:00'} | cluster.capacity.ends_at | not a time in UTC
end on no day | BLOCK | {cluster.capacity.ends_at: '2026-13-05T11:30:00Z'} | cluster.capacity.ends_at | not a time in UTC
reserved zone of another region | RESERVATION {cluster.capacity.availability_zone: us-east-2c} | {cluster.capacity.availability_zone: us-west-2a} | cluster.capacity.availability_zone | not a zone of us-east-2; use one of us-east-2a, us-east-2b
a zone that its region lacks | {cluster.availability_zones: [us-east-2c, us-east-2a]} | {cluster.availability_zones: [us-east-2a, us-east-2f]} | cluster.availability_zones[1] | is not a zone of us-east-2
malformed reservation | RESERVATION | {cluster.capacity.reservation_id: r-1} | cluster.capacity.reservation_id | has another form; write the id that EC2 gave the reservation or block, as in cr-0123456789abcdef0
more nodes than the most | {cluster.nodes: 2, cluster.max_nodes: 2} | {cluster.max_nodes: 1} | cluster.nodes | above cluster.max_nodes 1
more gateways than zones | {cluster.network: {nat_gateways: 2}} | {cluster.network.nat_gateways: 3} | cluster.network.nat_gateways | one gateway a zone
no way out | {cluster.network: {nat_gateways: 1}} | {cluster.network.nat_gateways: 0} | cluster.network.nat_gateways | greater than or equal to 1
namespace of a Prometheus | {cluster.prometheus: {namespace: monitoring, labels: {release: kube-prometheus-stack}}} | {cluster.prometheus.namespace: Monitoring} | cluster.prometheus.namespace | has another form; write a namespace's name
Prometheus that nobody can find | {cluster.prometheus: {namespace: m, labels: {example.com/team: a-b}}} | {-cluster.prometheus.namespace} | cluster.prometheus.namespace | missing
label that Kubernetes refuses | {cluster.prometheus: {namespace: m, labels: {release: stack}}} | {cluster.prometheus.labels.release: two words} | cluster.prometheus.labels.release | has another form; write a label's value
an hour that is none | {cluster.off_at_utc: '23:59'} | {cluster.off_at_utc: '24:00'} | cluster.off_at_utc | has another form; write hour and minute in UTC, as in "22:00"
small instance where it was not seen | SMALL | {cluster.region: us-east-2, cluster.availability_zones: [us-east-2a, us-east-2b]} | cluster.region | trn2.3xlarge was not seen there
more devices than the small instance has | SMALL | {serving.devices: 4, serving.tensor_parallel: 16} | serving.devices | use one of 1
claims where no group is published | SMALL | {serving.allocation: dra} | serving.allocation | use `device-plugin`
gated model without a token | LLAMA | {-weights} | target.model | no `weights.token_secret`
gated draft without a token | {weights: {token_secret: hf-token}} | {weights.token_secret: HF_TOKEN} | weights.token_secret | has another form; write a Secret's name
lab runtime on a Neuron instance | LAB | {cluster.instance: trn2.48xlarge, serving.devices: 8} | cluster.instance | serves in the lab only; use lab-cpu
Neuron runtime on the lab's machine | LAB | {runtime: nxdi-vllm-0.9.1, target.model: Qwen/Qwen3-32B, S.mode: fused, S.draft.model: Qwen/Qwen3-1.7B} | cluster.instance | needs Trainium2
lab target in a cluster | | {target.model: lab/target, S.draft.model: lab/draft} | target.model | exists nowhere else
devices on the lab's machine | LAB | {serving.devices: 1} | serving.devices | has no Neuron device
sharding on the lab's machine | LAB | {serving.tensor_parallel: 2} | serving.tensor_parallel | no NeuronCore
nodes for the lab | LAB | {cluster.nodes: 1} | cluster.nodes | the lab's own machine
quality pod in the lab | LAB | {benchmark.lm_eval: {limit: 10}} | benchmark.lm_eval | runs as a pod
fused in the lab | LAB | {S.mode: fused} | S.mode | use mode `draft`
no token drafted in the lab | LAB {S.num_speculative_tokens: 1} | {S.num_speculative_tokens: 0} | S.num_speculative_tokens | at least one token must be drafted
window above an answer where a step yields one more | LAB {benchmark.max_tokens: 8} | {benchmark.max_tokens: 7} | S.num_speculative_tokens | at most k+1 tokens come out of a step
draft model on the plugin | PLUGIN_EAGLE3 | {S.mode: fused, S.draft: {model: meta-llama/Llama-3.2-1B-Instruct}} | S.mode | a draft model is "only supported on the legacy Neuron fork of vLLM v0"
EAGLE for Qwen3 on the plugin | PLUGIN_EAGLE3 | {target.model: Qwen/Qwen3-32B, S.draft.head_for: Qwen/Qwen3-32B} | S.mode | none for Qwen3
DFlash on the plugin | PLUGIN_EAGLE3 | {S.mode: dflash} | S.mode | native vLLM Neuron plugin only
window of one on EAGLE | EAGLE | {S.num_speculative_tokens: 1} | S.num_speculative_tokens | needs 2 at least
draft model on the native plugin | NATIVE | {S.mode: fused, S.draft: {model: Qwen/Qwen3-1.7B}} | S.mode | not supported by the native plugin
EAGLE v1 on the native plugin | NATIVE | {S.mode: eagle} | S.mode | EAGLE3 heads only
two windows of one DFlash head | DFLASH | {S.num_speculative_tokens: [9, 15]} | S.num_speculative_tokens[1] | drafts the block that it was trained with, and qwen-sd-vllm-k9 drafts 9 tokens with the same head
another window than a head was trained with | QWEN_DFLASH | {S.num_speculative_tokens: 7} | S.num_speculative_tokens | z-lab/Qwen3-4B-DFlash-b16 drafts 15 tokens, fixed by its training
a head of another mode | NATIVE_8B | {S.mode: dflash} | S.mode | is a head of mode eagle3
a known head for another model | NATIVE_8B | {target.model: meta-llama/Llama-3.3-70B-Instruct, S.draft: {model: RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3, head_for: meta-llama/Llama-3.3-70B-Instruct}} | S.draft.head_for | was trained for meta-llama/Llama-3.1-8B-Instruct
an EAGLE3 head of two layers | NATIVE_8B | {S.draft.head_layers: 2} | S.draft.head_layers | has one layer on runtime native-vllm-0.29
EAGLE3 sampled on the host | NATIVE_8B | {arms.1.engine: {on_device_sampling_config: null}} | arms[1].engine.on_device_sampling_config | its drafts are rejected there
sampling that the plugin lacks | NATIVE_8B | {arms.1.engine: {on_device_sampling_config: {beams: 4}}} | arms[1].engine.on_device_sampling_config | a mapping of all_greedy, temperature, top_k, top_p
bucket of context off the tile | NATIVE {arms.1.engine: {decode_context_length_buckets: [256, 512]}} | {arms.1.engine: {decode_context_length_buckets: [256, 500]}} | arms[1].engine.decode_context_length_buckets | ascending multiples of 128 below 1024
bucket of context at its end | NATIVE {arms.1.engine: {decode_context_length_buckets: [512]}} | {arms.1.engine: {decode_context_length_buckets: [1024]}} | arms[1].engine.decode_context_length_buckets | below 1024
buckets of sequences without the last | NATIVE {arms.1.engine: {num_seqs_buckets: [1, 2, 4]}} | {arms.1.engine: {num_seqs_buckets: [1, 2]}} | arms[1].engine.num_seqs_buckets | the last of them 4
buckets in no order | NATIVE {arms.1.engine: {num_batched_tokens_buckets: [512, 1024]}} | {arms.1.engine: {num_batched_tokens_buckets: [1024, 512]}} | arms[1].engine.num_batched_tokens_buckets | ascending whole numbers
segments of another size | NATIVE {arms.1.engine: {kv_segment_size_buckets: [512, 1024]}} | {arms.1.engine: {kv_segment_size_buckets: [700]}} | arms[1].engine.kv_segment_size_buckets | ascending numbers of 512, 1024
compile cache on a mounted bucket | NATIVE | {serving.artifact_source: mount} | serving.artifact_source | use `scratch`
no mode | | {S.mode: lookahead} | S.mode | known: fused, draft
engine key that does not exist | | {arms.1.engine: {fused_qkvs: true}} | arms[1].engine.fused_qkvs | did you mean: fused_qkv
engine key of another runtime | NATIVE | {arms.1.engine: {fused_qkv: true}} | arms[1].engine.fused_qkv | is not a key of the Neuron configuration of runtime native-vllm-0.29
engine key that serving decides | | {arms.1.engine: {tp_degree: 8}} | arms[1].engine.tp_degree | is decided by serving.tensor_parallel
engine key that the treatment decides | | {arms.1.engine: {speculation_length: 3}} | arms[1].engine.speculation_length | is decided by arms[].speculation
engine that changes nothing | | {arms.1.engine: {fused_qkv: false}} | arms[1].engine | changes nothing: the arm has these values without it
engine value that JSON lacks | | {arms.1.engine: {lm_head_pad: .nan}} | arms[1].engine.lm_head_pad | not JSON compliant
engine key where there is no Neuron | LAB | {arms.1.engine: {fused_qkv: true}} | arms[1].engine.fused_qkv | has no Neuron configuration
runtime of one arm unknown | {arms.1.runtime: nxdi-vllm-0.9.1} | {arms.1.runtime: nxdi-vllm-9.9} | arms[1].runtime | did you mean nxdi-vllm-0.9.1?
mode that the arm's own runtime lacks | {arms.1.runtime: nxdi-vllm-0.9.1} | {arms.1.runtime: nxdi-vllm-0.16} | S.mode | runtime nxdi-vllm-0.16 cannot do it
a plain model where a head is needed | EAGLE | {S.draft: {model: meta-llama/Llama-3.2-1B-Instruct}} | S.draft.model | `head_for: meta-llama/Llama-3.3-70B-Instruct`
a head where a model is needed | EAGLE | {S.mode: fused} | S.draft.head_for | drafts with a model of its own
a head for another target | EAGLE | {S.draft.head_for: Qwen/Qwen3-32B} | S.draft.head_for | reads the hidden states
a head for nobody | EAGLE | {S.draft.head_for: Qwen/Qwen3-33B} | S.draft.head_for | did you mean Qwen/Qwen3-32B?
a head that cannot be fetched | EAGLE | {S.draft.model: my head} | S.draft.model | write it as owner/name
unknown draft | | {S.draft.model: Qwen/Qwen3-1.8B} | S.draft.model | did you mean Qwen/Qwen3-1.7B? For a fine-tune write `like: Qwen/Qwen3-1.7B` beside it
unknown target | {target: {model: my-org/mine, like: Qwen/Qwen3-32B}} | {-target.like} | target.model | `config:` with the path of its config.json: docs/adding-a-model.md
a fine-tune of nobody | {target: {model: my-org/mine, like: Qwen/Qwen3-32B}} | {target.like: Qwen/Qwen3-33B} | target.like | did you mean Qwen/Qwen3-32B?
a fine-tune of the lab's model | {target: {model: my-org/mine, like: Qwen/Qwen3-32B}} | {target.like: lab/target} | target.like | is not in the catalogue of models
a fine-tune that cannot be fetched | {target: {model: my-org/mine, like: Qwen/Qwen3-32B}} | {target.model: mine} | target.model | write it as owner/name
a shape twice | {target: {model: my-org/mine, like: Qwen/Qwen3-32B}} | {target.config: mine.json} | target.config | has its shape already from `like`; keep one of them
a shape beside a head's | NATIVE | {S.draft.like: Qwen/Qwen3-0.6B} | S.draft.head_for | has its shape already from `like`
no configuration there | {target: {model: my-org/mine, like: Qwen/Qwen3-32B}} | {-target.like, target.config: nowhere.json} | target.config | cannot be read: No such file or directory
a model of the catalogue in another shape | | {target.like: Qwen/Qwen3-14B} | target.model | is described with another shape, in the catalogue
a commit of a bucket | {target.weights: 's3://my-bucket/mine'} | {target.revision: 0123456789abcdef0123456789abcdef01234567} | target.revision | give changed weights another folder
a bucket without a folder | {target.weights: 's3://my-bucket/mine'} | {target.weights: 's3://my-bucket/'} | target.weights | has another form; write a folder of a bucket, as in s3://my-bucket/models/mine
every bucket at once | {target.weights: 's3://my-bucket/mine'} | {target.weights: 's3://my-bucket/*'} | target.weights | has another form
Medusa in batches | MEDUSA | {serving.max_num_seqs: 4} | serving.max_num_seqs | one request at a time
more tokens than Medusa heads | MEDUSA | {arms.2.speculation.num_speculative_tokens: 5} | arms[2].speculation.num_speculative_tokens | the draft declares 4
figure of an arm that is not there | EXPECT | {expect.figures.0.arm: qwen-sd} | expect.figures[0].arm | known: qwen-vllm, qwen-sd-vllm
speed-up of the baseline | EXPECT | {expect.figures.0.metric: speed_up, expect.figures.0.row: S9} | expect.figures[0].metric | name another arm
figure of a class that is not asked | EXPECT | {expect.figures.0.classes: [poems]} | expect.figures[0].classes | known: code, json
figure of a load that is not measured | EXPECT | {expect.figures.0.concurrency: 16} | expect.figures[0].concurrency | is not measured; use one of 4
figure without a value | EXPECT | {-expect.figures.0.row} | expect.figures[0] | needs either `row` or `value`
figure of no row | EXPECT | {expect.figures.0.row: P99} | expect.figures[0].row | is not a row of the published results with tpot_s
figure that a row does not have | EXPECT | {expect.figures.0.metric: tokens_per_step} | expect.figures[0].row | with tokens_per_step; see
value of nobody | EXPECT | {-expect.figures.0.row, expect.figures.0.value: 0.045} | expect.figures[0].source | say where it was published
nothing expected | EXPECT | {expect.figures: []} | expect.figures | at least 1 item
tolerance of everything | EXPECT | {expect.figures.0.tolerance: 1.0} | expect.figures[0].tolerance | less than 1
nothing to compare but a batch Job | MEDUSA | {-arms.1} | S.mode | nothing is left to compare
unfused for Qwen3 | UNFUSED | {target.model: Qwen/Qwen3-32B, S.draft.model: Qwen/Qwen3-1.7B, arms.2.speculation.draft.model: Qwen/Qwen3-1.7B} | arms[2].speculation.mode | documented unfused for Llama
served arm unknown | {serve: {arm: qwen-sd-vllm}} | {serve.arm: qwen-sd-vlm} | serve.arm | did you mean qwen-sd-vllm?
served arm that is a batch Job | MEDUSA {serve: {arm: qwen-sd-vllm}} | {serve.arm: medusa} | serve.arm | not an arm of this experiment that serves
more replicas than fit | {serve: {arm: qwen-sd-vllm, replicas: 2}} | {serve.replicas: 3} | serve.replicas | hold 2 arms
more replicas in the end than fit | {serve: {arm: qwen-sd-vllm, max_replicas: 2, replicas: 1}} | {serve.max_replicas: 3} | serve.max_replicas | hold 2 arms
fewer replicas in the end than at first | {serve: {arm: qwen-sd-vllm, max_replicas: 2, replicas: 2}} | {serve.max_replicas: 1} | serve.max_replicas | below serve.replicas 2
load balancer without a key | BALANCED | {-serving.api_key_secret} | serving.api_key_secret | anybody on those networks
load balancer for nobody | BALANCED | {-serve.client_cidrs} | serve.client_cidrs | would let nobody in
load balancer for everybody | BALANCED | {serve.client_cidrs: [0.0.0.0/0]} | serve.client_cidrs[0] | opens the load balancer to everybody
callers without a load balancer | BALANCED | {-serve.certificate_arn} | serve.client_cidrs | no load balancer for them
certificate of another region | BALANCED | {serve.certificate_arn: arn:aws:acm:us-east-1:123456789012:certificate/a-b} | serve.certificate_arn | takes certificates of us-east-2 only
certificate of another service | BALANCED | {serve.certificate_arn: arn:aws:iam::123456789012:server-certificate/x} | serve.certificate_arn | is no ARN of a certificate in ACM
arm with the service's name | {arms.1.name: qwen3-32b-servic} | {arms.1.name: qwen3-32b-service} | arms[1].name | is the promoted service's name
quality without a question | {benchmark.lm_eval: {limit: 1}} | {benchmark.lm_eval.limit: 0} | benchmark.lm_eval.limit | greater than or equal to 1
arm with the quality check's name | | {arms.1.name: qwen-lmeval} | arms[1].name | is the quality check's name
both ways of holding devices | {serving.allocation: device-plugin} | {serving.allocation: both} | serving.allocation | 'dra' or 'device-plugin'
a security level that is none | {serving.pod_security: restricted} | {serving.pod_security: privileged} | serving.pod_security | 'image-defaults', 'baseline' or 'restricted'
a date without quotes | BLOCK | {cluster.capacity.ends_at: 20261205} | cluster.capacity.ends_at | put it in quotes
unknown key | | {serving.max_num_seq: 4} | serving.max_num_seq | did you mean `max_num_seqs`?
another client | | {benchmark.harness: llmperf} | benchmark.harness | no longer builds or runs; remove the key
our client by its former name | | {benchmark.harness: native} | benchmark.harness | remove the key
settings of another client | | {benchmark.llmperf: {text: classes}} | benchmark.llmperf | remove the key
wrong type | | {serving.max_model_len: '1024'} | serving.max_model_len | valid integer
unquoted version | | {cluster.kubernetes: 1.35} | cluster.kubernetes | put it in quotes
version of the file | | {version: 2} | version | reads version 1
unknown model | | {target.model: Qwen/Qwen3-33B} | target.model | did you mean Qwen/Qwen3-32B?
unknown runtime | | {runtime: nxdi-vllm-0.9.2} | runtime | did you mean nxdi-vllm-0.9.1?
unknown instance | | {cluster.instance: p5.48xlarge} | cluster.instance | is not in the catalogue of instance types
tokenizer family | | {S.draft.model: meta-llama/Llama-3.2-1B-Instruct} | S.draft.model | its tokenizer (llama3, vocabulary 128256) differs from the target's (qwen3, 151936)
draft as large as target | | {S.draft.model: Qwen/Qwen3-32B} | S.draft.model | not smaller than the target
tensor parallelism | | {serving.tensor_parallel: 64} | serving.tensor_parallel | 8 devices x 8 cores / logical_nc_config 2 are 32 logical cores; use 32
group size | | {serving.devices: 6, serving.tensor_parallel: 24} | serving.devices | use one of 1, 4, 8, 16
memory | {serving.devices: 1, serving.tensor_parallel: 4, serving.max_num_seqs: 20, serving.max_model_len: 4096} | {serving.max_num_seqs: 24} | serving.devices | these devices have 96
window below the least | | {S.num_speculative_tokens: 1} | S.num_speculative_tokens | needs 2 at least: at most k tokens come out of a step
window above an answer | | {benchmark.max_tokens: 5, S.num_speculative_tokens: 7} | S.num_speculative_tokens | use 5 or less
draft longer than target | | {S.draft_max_model_len: 2048} | S.draft_max_model_len | above the target's max_model_len 1024
context beyond the native plugin | NATIVE {serving.max_model_len: 16384} | {serving.max_model_len: 16385} | serving.max_model_len | in one piece up to 16384 tokens
context beyond the model | | {serving.max_model_len: 65536} | serving.max_model_len | 40960 positions
temperature | | {benchmark.temperature: 0.7} | benchmark.temperature | greedily
kubernetes too old | | {cluster.kubernetes: '1.34'} | cluster.kubernetes | below 1.35
kubernetes too new | | {cluster.kubernetes: '1.40'} | cluster.kubernetes | no Neuron AMI
kubernetes malformed | | {cluster.kubernetes: v1.35} | cluster.kubernetes | no Kubernetes version
answers too long for most prompts | | {benchmark.max_tokens: 2000} | benchmark.max_tokens | 40 of 40 prompts do not fit max_model_len 1024 with it; the longest,
arm's name | | {arms.1.name: Qwen_SD} | arms[1].name | not a DNS label
experiment's name | | {name: aaaaaaaaaaaaaaaaaaaaaaaaaa} | name | S3 bucket names
duplicate names | | {arms.1.name: qwen-vllm} | arms[1].name | is the name of another arm too
reserved name | | {arms.1.name: qwen-llmperf} | arms[1].name | is the benchmark's name
empty prompt | | {prompts.classes.code.1: ' '} | prompts.classes.code[1] | is empty
a prompt never asked | | {benchmark.requests: 7} | benchmark.requests | use 8 or more
a level twice | | {benchmark.concurrency: [4, 4]} | benchmark.concurrency | names a level twice
negative seed | | {benchmark.seed: -1} | benchmark.seed | greater than or equal to 0
a window nobody published | | {S.num_speculative_tokens: 33} | S.num_speculative_tokens | takes 32 at most
a section that is no mapping | | {target: Qwen/Qwen3-32B} | target | must be a mapping
reserved namespace | | {name: kube-system} | name | is reserved
network without a mask | | {cluster.admin_cidrs: [8.8.8.8]} | cluster.admin_cidrs[0] | 8.8.8.8/32
half the internet | | {cluster.admin_cidrs: [0.0.0.0/1]} | cluster.admin_cidrs[0] | more than a /8
no prompts | | {prompts: {}} | prompts | either `classes` or `file`
prompts file missing | | {prompts: {file: none.jsonl}} | prompts.file | cannot be read
thinking without chat | | {benchmark.thinking: true, benchmark.endpoint: completions} | benchmark.thinking | use `endpoint: chat`
region without Trn2 | | {cluster.region: eu-west-1} | cluster.region | not seen there
one zone twice | | {cluster.availability_zones: [us-east-2a, us-east-2a]} | cluster.availability_zones[1] | stands twice
prefix past 32 | | {cluster.admin_cidrs: [8.8.8.8/33]} | cluster.admin_cidrs[0] | is no IPv4 network
host bits | | {cluster.admin_cidrs: [8.8.8.8/24]} | cluster.admin_cidrs[0] | write it as 8.8.8.0/24
IPv6 | | {cluster.admin_cidrs: ['2a00:1450::/32']} | cluster.admin_cidrs[0] | is IPv6
everybody | | {cluster.admin_cidrs: [0.0.0.0/0]} | cluster.admin_cidrs[0] | to everybody
everybody by mask | | {cluster.admin_cidrs: [0.0.0.0/0.0.0.0]} | cluster.admin_cidrs[0] | to everybody
more than a /8 in pieces | | {cluster.admin_cidrs: [8.0.0.0/8, 9.9.9.0/24]} | cluster.admin_cidrs | more than a /8
one inside another | | {cluster.admin_cidrs: [8.8.8.0/24, 8.8.8.8/32]} | cluster.admin_cidrs[1] | overlaps 8.8.8.0/24
private | | {cluster.admin_cidrs: [10.20.0.0/16]} | cluster.admin_cidrs[0] | which EKS refuses at a public endpoint
of carriers | | {cluster.admin_cidrs: [100.64.0.0/16]} | cluster.admin_cidrs[0] | which EKS refuses
no list | | {cluster.admin_cidrs: 8.8.8.8/32} | cluster.admin_cidrs | must be a list; write [8.8.8.8/32]
null | | {cluster.admin_cidrs: null} | cluster.admin_cidrs | must be a list; write [] for none
a number | | {cluster.admin_cidrs: [8]} | cluster.admin_cidrs[0] | put it in quotes
local zone | | {cluster.availability_zones: [us-east-2-chi-1a, us-east-2a]} | cluster.availability_zones[0] | is not a zone of us-east-2; use one of us-east-2a, us-east-2b
no zones | | {cluster.availability_zones: []} | cluster.availability_zones | at least 2 items, not 0
a day that February lacks | BLOCK | {cluster.capacity.ends_at: '2026-02-30T11:30:00Z'} | cluster.capacity.ends_at | is not a time in UTC
sweep: one bad window | | {S.num_speculative_tokens: [3, 1, 7]} | S.num_speculative_tokens[1] | needs 2 at least
sweep: a window twice | | {S.num_speculative_tokens: [3, 7, 3]} | S.num_speculative_tokens[2] | stands twice in this sweep
sweep: a draft twice | | {S.draft: [{model: Qwen/Qwen3-0.6B}, {model: Qwen/Qwen3-0.6B}]} | S.draft[1] | stands twice in this sweep
sweep: one unknown draft | | {S.draft: [{model: Qwen/Qwen3-0.6B}, {model: Qwen/Qwen3-1.8B}], S.num_speculative_tokens: [3, 7]} | S.draft[1].model | did you mean Qwen/Qwen3-1.7B?
sweep: a misspelt key of one draft | | {S.draft: [{model: Qwen/Qwen3-0.6B}, {model: Qwen/Qwen3-1.7B, modle: Qwen/Qwen3-1.7B}]} | S.draft[1].modle | did you mean `model`?
sweep: no window | | {S.num_speculative_tokens: []} | S.num_speculative_tokens | at least 1 item
mode eagle | | {S.mode: eagle} | S.mode | use mode `fused`
mode medusa | | {S.mode: medusa} | S.mode | use mode `fused`
missing section | | {-target} | target | is required
arm equal to the baseline | | {-arms.1.speculation} | arms[1] | equal to the baseline
one arm | | {-arms.1} | arms | needs two arms
too few prompts | | {-prompts.classes.code.7} | prompts.classes.code | 7 distinct prompts
class that is no name | | {prompts.classes.déjà vu: [a, b, c, d, e, f, g, h]} | prompts.classes.déjà vu | printable ASCII
arm's name too long for its Jobs | | {arms.1.name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa} | arms[1].name | use 54 at most
more arms than anybody reads | | {S.draft: [{model: Qwen/Qwen3-0.6B}, {model: Qwen/Qwen3-1.7B}, {model: Qwen/Qwen3-4B}, {model: Qwen/Qwen3-8B}, {model: Qwen/Qwen3-14B}], S.num_speculative_tokens: [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32]} | arms | make 156 arms; sweep less: 128 arms at most
patch release | | {cluster.kubernetes: 1.35.2} | cluster.kubernetes | is no Kubernetes version
leading zero | | {cluster.kubernetes: '01.35'} | cluster.kubernetes | is no Kubernetes version
digits of another script | | {cluster.kubernetes: 1.３５} | cluster.kubernetes | is no Kubernetes
a 25th hour | BLOCK | {cluster.capacity.ends_at: '2026-12-05T24:30:00Z'} | cluster.capacity.ends_at | is not a time in UTC
sweep: a word among windows | | {S.num_speculative_tokens: [3, seven]} | S.num_speculative_tokens[1] | valid integer
answers too long for most prompts of one class | | {prompts: {classes: {a: [b, c, d, e, f, g, h, i]}}, benchmark.max_tokens: 2000} | benchmark.max_tokens | 8 of 8 prompts do not fit
"""
"""Name | what passes, beyond the reference | the mistake in it | where it is said | words of the line. Edits as in
`combined`; S is the speculation of the second arm."""
K = f"{SPECULATION}.num_speculative_tokens"
CIDRS = "cluster.admin_cidrs"
LONGEST = "prompts.classes.json.3"


def _plan_beyond_a_config_map(data: dict[str, Any]) -> None:
    data["prompts"]["classes"].update(json=["x" * 30_000 + str(n) for n in range(30)])
    data["serving"].update(max_model_len=40_000)


HERE: dict[str, tuple[Edit, str, str]] = {
    "a plan beyond a ConfigMap": (_plan_beyond_a_config_map, "prompts", "holds 1 MiB"),
    "prompt too long": (
        put(LONGEST, "x" * 400),
        "prompts.classes.json",
        "up to 400 prompt tokens (its UTF-8 bytes) + 48 for nonce and template + 600 to generate + 7 for "
        "the last step of qwen-sd-vllm, which fails beyond the context = 1055",
    ),
    "prompt length in bytes, not letters": (
        put(LONGEST, "é" * 200),
        "prompts.classes.json",
        "up to 400 prompt tokens",
    ),
    "an absurd number": (put("serving.max_num_seqs", 10**400), "serving.max_num_seqs", "less than or equal"),
    "endless digits": (
        put("cluster.kubernetes", "1." + "9" * 5000),
        "cluster.kubernetes",
        "is no Kubernetes",
    ),
    "too many": (put(CIDRS, [f"8.8.{n}.0/24" for n in range(41)]), CIDRS, "41 networks, and EKS takes 40"),
}


def _rows() -> dict[str, tuple[Edit, Edit, str, str]]:
    rows = (
        [cell.strip() for cell in line.split("|")] for line in (TABLE.strip() + MORE).strip().splitlines()
    )
    return {
        name: (combined(good), combined(mistake), path.replace("S.", "arms[1].speculation."), words)
        for name, good, mistake, path, words in rows
    } | {name: (both(), edit, path, words) for name, (edit, path, words) in HERE.items()}


REFUSED = _rows()


@pytest.fixture(scope="module")
def passed() -> set[str]:
    """Texts of twins that were loaded: most mistakes are in the reference."""
    return set()


@pytest.mark.parametrize("name", REFUSED)
def test_the_twin_passes_and_the_mistake_is_one_line(
    name: str, variation: Variation, passed: set[str]
) -> None:
    good, mistake, path, words = REFUSED[name]
    twin = variation(good)
    if twin.read_text() not in passed:
        load(twin)
        passed.add(twin.read_text())
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(good, mistake)))
    assert [problem.where for problem in caught.value.findings] == [path], caught.value.lines
    (line,) = caught.value.lines
    assert f": {path}" in line
    assert words in line
    assert "; " in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("edit", "most", "room"),
    [(both(), 369, 7), (put(K, 2), 374, 2), (put(K, [2, 7]), 369, 7), (NATIVE, 376, 0)],
    ids=["k of the last step", "a smaller window", "the longest of a sweep", "a runtime without that limit"],
)
def test_a_prompt_may_fill_the_context_up_to_the_last_step(
    edit: Edit, most: int, room: int, variation: Variation
) -> None:
    assert load(variation(both(edit, put(LONGEST, "x" * most)))).arms[-1].step_room == room
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(edit, put(LONGEST, "x" * (most + 1)))))
    (line,) = caught.value.lines
    assert "prompts.classes.json" in line
    assert "above max_model_len 1024" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("a: [", "is not valid YAML at line"),
        ("just words", "not a mapping"),
        ("- 1\n- 2", "not a mapping"),
        ("a: &a [*a]", "nests without end"),
        ("[" * 200_000, "nests more than 20 levels"),
        ("- " * 100_000, "nests more than 20 levels"),
        (
            "\n".join(
                f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' for _ in range(9))}]" if n else "a0: &a0 [1]"
                for n in range(9)
            ),
            "more than 20 aliases",
        ),
        ("description: 2024-13-45", "a value that YAML cannot read"),
        ("seed: " + "9" * 5000, "a number of 5000 characters"),
        ("a: !!int abc", "has the tag '!!int' at line 1"),
        ("a: !mine maybe", "has the tag '!mine'"),
        ("version: 1\n2: 3", "2 is a key that is not text"),
        ("a: " + "x" * 2**20, "is larger than 1 MiB"),
        ("version: 1\nname: x\nname: y", "the key stands twice"),
        ("\tversion: 1", "is not valid YAML"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InvalidExperiment, match=words):
        load(path)


def test_a_key_that_stands_very_often_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "often.yaml"
    path.write_text("version: 1\n" + "name: x\n" * 9000)
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    assert [one.where for one in caught.value.findings].count("name") == 1


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperiment, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidExperiment, match="is not UTF-8"):
        load(path)


def test_every_problem_is_reported_at_once(variation: Variation) -> None:
    edits = [
        put("serving.max_num_seq", 4),
        put("benchmark.warmup", "four"),
        put("serving.tensor_parallel", 31),
        put("arms.1.speculation.num_speculative_tokens", "seven"),
        put("arms.1.speculation.mode", "medusa"),
        put("cluster.kubernetes", "1.30"),
        put("benchmark.temperature", 0.5),
    ]
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(*edits)))
    assert {problem.where for problem in caught.value.findings} == {
        "serving.max_num_seq",
        "benchmark.warmup",
        "arms[1].speculation.num_speculative_tokens",
        "arms[1].speculation.mode",
        "serving.tensor_parallel",
        "cluster.kubernetes",
        "benchmark.temperature",
    }


def test_unknown_classes_of_a_figure_are_said_in_the_order_of_the_file(variation: Variation) -> None:
    unknown = ["nine", "two", "seven", "one", "five", "eight"]
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(both(EXPECT, put("expect.figures.0.classes", [*unknown, "code", "two"]))))
    assert [problem.value for problem in caught.value.findings] == unknown


def test_nothing_is_judged_on_a_value_that_is_broken_itself(variation: Variation) -> None:
    edit = put("serving.devices", "eight")
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(edit))
    assert [problem.where for problem in caught.value.findings] == ["serving.devices"]


def test_problems_name_the_line_of_the_file(variation: Variation) -> None:
    path = variation(put("benchmark.temperature", 0.5))
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if "temperature" in line)
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    assert caught.value.lines[0].startswith(f"{path}:{number}: benchmark.temperature = 0.5: ")


@pytest.mark.parametrize("cidrs", [["8.8.8.8/32", "9.9.9.0/24"], ["9.0.0.0/8"], []])
def test_networks_of_ones_own_are_taken(cidrs: list[str], variation: Variation) -> None:
    assert load(variation(put(CIDRS, cidrs))).cluster.admin_cidrs == tuple(cidrs)


def test_a_reservation_may_lie_in_any_zone_of_the_region(variation: Variation) -> None:
    assert load(variation(BLOCK)).cluster.trn2_zone == "us-east-2b"


@pytest.mark.parametrize("region", ZONES)
def test_the_longest_name_gives_buckets_that_s3_takes(region: str, variation: Variation) -> None:
    edit = both(
        put("name", "x" * longest_name(region)),
        put("cluster.region", region),
        put("cluster.availability_zones", list(ZONES[region][:2])),
    )
    named = load(variation(edit))
    assert all(len(bucket(named, kind, "1" * 12)) <= 63 for kind in ("checkpoints", "artifacts", "results"))
    with pytest.raises(InvalidExperiment, match="bucket names made from it would pass 63"):
        load(variation(both(edit, put("name", "x" * (longest_name(region) + 1)))))


def test_every_pattern_of_the_schema_is_explained() -> None:
    schema = json.dumps(ExperimentFile.model_json_schema())
    found = re.findall(r'"pattern(?:Properties)?": (?:\{)?("(?:[^"\\]|\\.)*")', schema)
    patterns = {json.loads(one) for one in found}
    assert patterns == FORMS.keys()
