"""AWS and the cluster of an experiment, as the verbs ask them: every answer is checked, every failure is one line."""
