"""What a change does, for whoever has to approve it: two renders compared, told in the reader's terms."""
