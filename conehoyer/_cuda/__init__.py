"""Kernels for arrays on a GPU; imported when the first such array comes in."""
