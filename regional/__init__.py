"""REGIONAL AND LOCAL: a router receives requests, chooses region, zone and GPU for each, and relays them."""
