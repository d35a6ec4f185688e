"""Decisions of the control plane about what is known: what a region is told, and what the fleet looks like from its reports."""
