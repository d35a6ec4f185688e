"""A model server without a GPU: vLLM's API, metric names and scheduling, with the step times of a chosen GPU product.

``scheduler`` and ``blocks`` are pure (time is an argument), ``engine`` runs them on asyncio, ``server`` speaks HTTP.
"""
