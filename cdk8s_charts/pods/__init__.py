"""What pods have, whatever they do."""
