"""The verbs of `./trnspec` about experiments and AWS, and what the pipeline does with a deployed stage.

Tests drive them against moto, botocore's Stubber and a small Kubernetes API server. Nothing here was verified on AWS.
"""
