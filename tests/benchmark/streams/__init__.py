"""What real servers and proxies send, played by one server whose truth is known."""
