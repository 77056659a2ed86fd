"""The integral operator on [0, 1]^d, its discretisations, and the local equation it tends to."""
