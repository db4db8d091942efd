"""What is refused of an existing VPC and an existing cluster, as a table of `test_refusals`."""

TABLE = """
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
"""
