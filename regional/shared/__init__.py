"""What the routers of one region share. Nothing here is ever waited for by a request: losing it costs precision, not answers."""
