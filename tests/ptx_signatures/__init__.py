"""The kernels and the types they are compiled for: a module for each family."""
