"""From the comparison's winner to a service: the experiment file says so, the manifests follow, both are reviewed."""
