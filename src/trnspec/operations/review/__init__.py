"""Review of a change: two renders are compared, and the effects are described for the person who approves it."""
