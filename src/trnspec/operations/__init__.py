"""What people and pipelines do with a deployed experiment: the verbs behind `scripts/`.

A verb reads the experiment file, AWS and the cluster; decisions are pure functions over what was read. Driven in tests
against moto, botocore's Stubber and a small Kubernetes API server; not verified on AWS.
"""
