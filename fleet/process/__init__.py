"""What every process of headrace has in common: settings, logs, health, serving, TLS, its incarnation.

Shells only; nothing here decides anything about requests.
"""
