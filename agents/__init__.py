"""The node tier: what one machine says about its accelerators and engines, to every router of its region."""
