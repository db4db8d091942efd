"""From numbers to readers: a terminal, CloudWatch."""
