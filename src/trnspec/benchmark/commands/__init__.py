"""The verbs of the command line. Each imports its modules when it is executed, so that `--help` starts fast."""
