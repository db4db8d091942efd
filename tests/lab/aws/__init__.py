"""The rehearsal: nothing left out without a word, and what is read back is what the templates asked for."""
