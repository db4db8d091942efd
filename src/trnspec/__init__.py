"""Does speculative decoding pay on AWS Trainium2, for your prompts? The experiment, its measurement, and the verbs that run it.

`infra` and `cdk8s_charts`, which make AWS stacks and Kubernetes objects of an experiment, are only in a checkout of the repository.
"""

__version__ = "0.3.0"
