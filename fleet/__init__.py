"""The words all tiers share. The modules directly in this folder need only the standard library."""
