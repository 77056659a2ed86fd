"""The commands of nonloc-paper; each is a thin call into a lower floor."""
