"""GLOBAL: the control plane. Holds intent, publishes it to regions, and gathers what regions report."""
