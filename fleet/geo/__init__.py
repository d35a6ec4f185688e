"""Client address to place, and how far places are apart. For routers and the control plane."""
