"""The rendered objects against a real API server, when there is one (tests/apiserver/README.md)."""
