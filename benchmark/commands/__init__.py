"""The verbs of the command line. Each imports what it works with when it is executed, so that `--help` starts fast."""
