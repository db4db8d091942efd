"""How far the client is from the truth: a server whose every chunk leaves at a known time, and the comparison."""
