"""What only a real node can prove, proved in two minutes before anything is compiled on it."""
