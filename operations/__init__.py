"""What a person or a pipeline does with an experiment on AWS; one subpackage or module a verb, behind `scripts/`."""
