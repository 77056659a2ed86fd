"""Which steps are stable: the largest one of a kernel, and certificates for whole stages."""
