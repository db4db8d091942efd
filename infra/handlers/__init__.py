"""Code of Lambda functions; each file uses only what the Lambda runtime has."""
