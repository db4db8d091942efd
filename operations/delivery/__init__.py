"""What the pipeline does with a stage once its stacks are deployed; behind `scripts/deliver`. Not run on AWS."""
