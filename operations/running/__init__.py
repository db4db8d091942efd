"""From deployed stacks to the answer and back to 0 nodes: one step a module, one state, resumable anywhere."""
