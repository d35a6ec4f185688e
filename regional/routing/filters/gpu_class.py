from __future__ import annotations

from fleet.tenancy import matches
from regional.fleetview.endpoint import Endpoint
from regional.fleetview.pool import Bools, Pool
from regional.routing.asked import Asked
from regional.routing.filters.masks import endpoint_mask


class GpuClass:
    """GPU products the tenant may not use. Where the product is not known, a tenant with such a rule does not go."""

    name = "gpu_class"

    def removes(self, pool: Pool, asked: Asked) -> Bools | None:
        classes = asked.facts.allowed_gpu_classes
        if classes == ("*",):
            return None
        key = (self.name, classes)
        if key not in pool.masks:
            pool.masks[key] = endpoint_mask(pool, lambda endpoint: not _permitted(endpoint, classes))
        return pool.masks[key]


def _permitted(endpoint: Endpoint, classes: tuple[str, ...]) -> bool:
    products = endpoint.gpu_products
    return bool(products) and all(matches(classes, product) for product in products)
