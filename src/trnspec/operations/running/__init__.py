"""From deployed stacks to the answer and back to 0 nodes: a list of steps over one state, resumable anywhere."""
