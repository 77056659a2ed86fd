"""The Markov jump process: its laws, its paths, where it comes to rest and how fast."""
