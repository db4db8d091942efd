"""What must be there before anything is deployed or run: one module a matter, each finding with its remedy."""
