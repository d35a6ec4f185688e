"""This router's ties upwards and sideways: the snapshot pulled, reports sent up, peers probed, the last good copy kept."""
