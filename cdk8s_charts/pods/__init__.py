"""What all kinds of pods have."""
