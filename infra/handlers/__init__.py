"""Code of Lambda functions; each file stands alone, with what the Lambda runtime brings."""
