"""What a change does, for the person who approves it: two renders compared, in the reader's terms."""
