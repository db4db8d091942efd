"""From raw records to numbers: pure functions, no network, no clock."""
