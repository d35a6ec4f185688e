"""``headrace demo``: the whole system on one machine, traffic from three continents, and the failover ladder.

The processes are the real ones: control plane, routers and agents run their own entry points. Only the GPUs, the network between
places and, unless asked otherwise, the engines are stand-ins.
"""
