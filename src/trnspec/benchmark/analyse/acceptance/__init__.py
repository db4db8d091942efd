"""How many tokens a step yields, and what another window would give."""
