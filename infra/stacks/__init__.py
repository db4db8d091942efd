"""One stack a file; a stack composes constructs and decides nothing."""
