"""The rendered objects against a real API server, when there is one (docs/api-server.md)."""
