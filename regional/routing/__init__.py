"""Where a request goes: region, zone, endpoint, in three visible steps over one cost."""
