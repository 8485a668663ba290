"""CPU kernels: the loops.  The equations are in ``conehoyer._math``."""
