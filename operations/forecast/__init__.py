"""Is the rental worth it? From acceptance measured anywhere to speed-up and cost on Trn2, before a node is paid for."""
