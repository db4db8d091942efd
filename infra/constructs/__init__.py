"""One capability a file."""
