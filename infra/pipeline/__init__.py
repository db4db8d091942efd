"""How a reviewed commit reaches the accounts."""
