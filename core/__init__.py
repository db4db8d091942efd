"""What every room needs once: words, numbers of things, a terminal's width."""
