"""Further rows of the table of `test_refusals`: an existing VPC or cluster, several sizes of the batch, loads of a benchmark,
a further arm."""

MORE = """
gateways of an existing VPC | VPC | {cluster.network.nat_gateways: 1} | cluster.network.nat_gateways | in an existing VPC its owner decides about that; remove it
endpoints of an existing VPC | VPC | {cluster.network.interface_endpoints: false} | cluster.network.interface_endpoints | in an existing VPC its owner decides
malformed VPC | VPC | {cluster.network.vpc: vpc-1} | cluster.network.vpc | has another form; write the id of a VPC
malformed subnet | VPC | {cluster.network.private_subnets.us-east-2b: sn-1} | cluster.network.private_subnets.us-east-2b | has another form; write the id of a subnet
subnets of no VPC | VPC | {-cluster.network.vpc} | cluster.network.private_subnets | and none is named; write its id as cluster.network.vpc
VPC without subnets | VPC | {-cluster.network.private_subnets} | cluster.network.private_subnets | has a subnet in no zone, and EKS needs subnets in two zones
subnets in one zone | VPC | {-cluster.network.private_subnets.us-east-2b} | cluster.network.private_subnets | has a subnet in us-east-2a, and EKS needs
a subnet for two zones | VPC | {cluster.network.private_subnets.us-east-2b: subnet-0a0123456789abcde} | cluster.network.private_subnets.us-east-2b | stands twice
a subnet of another region | VPC | {cluster.network.private_subnets.us-west-2a: subnet-0c0123456789abcde} | cluster.network.private_subnets.us-west-2a | us-west-2a is not a zone of us-east-2
zones unlike those of the subnets | VPC {cluster.network.private_subnets.us-east-2c: subnet-0c0123456789abcde, cluster.availability_zones: [us-east-2c, us-east-2b]} | {-cluster.network.private_subnets.us-east-2c} | cluster.network.private_subnets | has no subnet in us-east-2c, which cluster.availability_zones names
no subnet in the zone of a reservation | VPC RESERVATION | {cluster.capacity.availability_zone: us-east-2c} | cluster.network.private_subnets | has no subnet in us-east-2c, which cluster.capacity.availability_zone names
malformed cluster name | CLUSTER | {cluster.existing: my cluster} | cluster.existing | has another form; write the name of an EKS cluster
cluster of the experiment's own name | CLUSTER | {cluster.existing: qwen3-32b} | cluster.existing | is the experiment's own name
cluster without its VPC | CLUSTER | {-cluster.network} | cluster.network.vpc | is missing: an existing cluster is joined in its own VPC
cluster without its group | CLUSTER | {-cluster.security_group} | cluster.security_group | ./trnspec preflight name it
malformed group | CLUSTER | {cluster.security_group: default} | cluster.security_group | has another form; write the id of a security group
endpoint of an existing cluster | CLUSTER | {cluster.admin_cidrs: [8.8.8.0/24]} | cluster.admin_cidrs | which its owner decides about; remove it
software of no cluster | CLUSTER {cluster.provided: [neuron]} | {-cluster.existing, -cluster.security_group} | cluster.provided | is of an existing cluster, and none is named
group of no cluster | CLUSTER | {-cluster.existing} | cluster.security_group | is of an existing cluster, and none is named
software of another kind | CLUSTER | {cluster.provided: [argo]} | cluster.provided[0] | 'eks-pod-identity-agent'
nodes of itself | SHARING | {cluster.nodes_of: qwen3-32b} | cluster.nodes_of | is this experiment; write the name of the one
nodes of no name | CLUSTER | {cluster.nodes_of: First One} | cluster.nodes_of | has another form; write the name of an experiment
replicas that scale without KEDA | CLUSTER {serve.arm: qwen-sd-vllm} | {serve.max_replicas: 2} | serve.max_replicas | let the cluster's owner install KEDA and write keda into cluster.provided
nodes started for another | SHARING | {cluster.nodes: 1} | cluster.nodes | nodes are started with the stacks of first
hour of the nodes of another | SHARING | {cluster.off_at_utc: "20:00"} | cluster.off_at_utc | first turns its nodes off every day, at the hour that its own file says; remove it
shared nodes with the device plugin | SHARING | {serving.allocation: device-plugin} | serving.allocation | use allocation: dra, or remove cluster.nodes_of
batch of none | {serving.max_num_seqs: [4, 8]} | {serving.max_num_seqs: [4, 0]} | serving.max_num_seqs[1] | greater than 0
no batch | {serving.max_num_seqs: [4]} | {serving.max_num_seqs: []} | serving.max_num_seqs | at least 1 item
batch twice | {serving.max_num_seqs: [4, 8]} | {serving.max_num_seqs: [4, 8, 4]} | serving.max_num_seqs[2] | stands twice
batch in words | {serving.max_num_seqs: [4, 8]} | {serving.max_num_seqs: [4, eight]} | serving.max_num_seqs[1] | valid integer
batch beyond the memory | {serving.max_num_seqs: [4, 8]} | {serving.max_num_seqs: [4, 2000]} | serving.devices | fewer sequences
batch that makes another arm's name | {serving.max_num_seqs: [4, 8], arms.1.name: qwen-vllm-b4} | {arms.1.name: qwen-vllm-b8} | arms[0].name | is the name of another arm too
batch that makes a long name | {serving.max_num_seqs: [4, 8], arms.1.name: a-name-of-51-characters-which-is-as-long-as-possibl} | {arms.1.name: a-name-of-52-characters-which-is-as-long-as-possible} | arms[1].name | use 54 at most
batches of a bad name | {serving.max_num_seqs: [4, 8]} | {arms.1.name: Qwen} | arms[1].name | is not a DNS label
batches of one name | {serving.max_num_seqs: [4, 8]} | {arms.1.name: qwen-vllm} | arms[1].name | is the name of another arm too
batches of the baseline alone | {serving.max_num_seqs: [4, 8]} | {-arms.1, serve: null, benchmark.lm_eval: null} | arms | a comparison needs two arms, there is 1
speed-up of another batch's baseline | EXPECT {serving.max_num_seqs: [4, 8]} | {expect.figures.0.arm: qwen-vllm-b8, expect.figures.0.metric: speed_up, expect.figures.0.row: S9} | expect.figures[0].metric | name another arm
Medusa in one of two batches | MEDUSA | {serving.max_num_seqs: [1, 4, 8]} | serving.max_num_seqs | one request at a time
listed as well as searched | SEARCHED | {benchmark.concurrency: [4]} | benchmark.load | benchmark.concurrency cannot be set as well
a duration beside a search | SEARCHED | {benchmark.duration: 3h} | benchmark.load | benchmark.duration cannot be set
passes beside a search | SEARCHED | {benchmark.rounds: 2} | benchmark.load | benchmark.rounds cannot be set
both loops | BY_RATE | {benchmark.load.search: [1, 64]} | benchmark.load | keep one of them
neither loop | SEARCHED | {-benchmark.load.search} | benchmark.load | keep one of them
an empty range | SEARCHED | {benchmark.load.search: [8, 8]} | benchmark.load.search | empty range
a range upside down | BY_RATE | {benchmark.load.search_rate: [8, 0.5]} | benchmark.load.search_rate | lower end first
one end of a range | SEARCHED | {benchmark.load.search: [64]} | benchmark.load.search | at least 2 items
half a request | SEARCHED | {benchmark.load.search.0: 0.5} | benchmark.load.search[0] | integer
objectives twice | SEARCHED | {benchmark.slo: {tpot_s: 0.05}} | benchmark.slo | is not read where loads are searched
objectives beside the search | SEARCHED {-benchmark.load.objective} | {benchmark.slo: {tpot_s: 0.05}} | benchmark.slo | move it there, or remove it
an objective without one | SEARCHED | {benchmark.load.objective: {}} | benchmark.load.objective | names no objective; write seconds
goodput without an objective | | {benchmark.slo: {}} | benchmark.slo | names no objective; write seconds
a range as on the command line | SEARCHED | {benchmark.load.search: '1:64'} | benchmark.load.search | write [1, 64]
one cell | SEARCHED | {benchmark.load.budget: {cells: 1}} | benchmark.load.budget.cells | equal to 2
no dollars | SEARCHED | {benchmark.load.budget: {usd: 0}} | benchmark.load.budget.usd | than 0
arms that run alone | SEARCHED | {serving.devices: 16, serving.tensor_parallel: 64} | benchmark.load | holds one arm
figure above the range | EXPECT SEARCHED {expect.figures.0.concurrency: 64} | {expect.figures.0.concurrency: 65} | expect.figures[0].concurrency | use 1 to 64
figure of a rate | EXPECT | {-benchmark.concurrency, benchmark.load: {search_rate: [0.5, 8.0]}} | expect.figures[0].concurrency | remove the figure
duration without a unit | {benchmark.duration: 90s} | {benchmark.duration: '90'} | benchmark.duration | as in 90s, 90m or 3h
duration as a number | | {benchmark.duration: 90} | benchmark.duration | put it in quotes
duration beyond the nodes | {benchmark.duration: 168h} | {benchmark.duration: 169h} | benchmark.duration | use 168h or less
duration beyond a life | | {benchmark.duration: 9999999999h} | benchmark.duration | use 168h or less
passes and a duration | {benchmark.rounds: 2} | {benchmark.duration: 3h} | benchmark.duration | keep one of the two
the same treatment spelt otherwise | | {arms.2: {name: again, speculation: {mode: fused, draft: {model: Qwen/Qwen3-1.7B}, num_speculative_tokens: 7, draft_max_model_len: 1024}}} | arms[2] | is equal to qwen-sd-vllm
baseline that speculates | | {arms: [{name: drafting, speculation: {mode: fused, draft: {model: Qwen/Qwen3-1.7B}, num_speculative_tokens: 7}}, {name: qwen-sd-vllm}]} | arms[0].speculation | first arm is the baseline
the same prompt again | {prompts.classes.code.0: a, prompts.classes.code.1: b} | {prompts.classes.code.1: a} | prompts.classes.code | 7 distinct prompts
a name that a sweep makes | {S.num_speculative_tokens: [3, 7]} | {arms.2: {name: qwen-sd-vllm-k7, speculation: {mode: fused, draft: {model: Qwen/Qwen3-0.6B}, num_speculative_tokens: 7}}} | arms[2].name | is the name of another arm too
an arm that a sweep holds already | {S.num_speculative_tokens: [3, 7]} | {arms.2: {name: again, speculation: {mode: fused, draft: {model: Qwen/Qwen3-1.7B}, num_speculative_tokens: 7}}} | arms[2] | is equal to qwen-sd-vllm-k7
"""
