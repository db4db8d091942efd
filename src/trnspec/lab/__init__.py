"""The whole experiment on one machine: emulated arms, a stand-in for AWS, the cluster's own benchmark."""
