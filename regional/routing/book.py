"""Which policy governs a request: its tenant's, else its model's, else the one whose match fits, else expected cost."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.errors import InvalidInput
from fleet.intent import Intent, PolicyIntent
from fleet.request import RequestFacts
from fleet.tenancy import matches
from regional.routing.interfaces import Policy
from regional.routing.policies.expected_cost import ExpectedCost
from regional.routing.registry import Registry, build


class PolicyBook:
    """Instances live over changes of intent as long as their policy resource stays as it is, so a turn is not lost."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._intent = Intent()
        self._region = ""
        self._default: Policy = ExpectedCost(ExpectedCost.Parameters())
        self._by_choice: dict[tuple[str, str, str, str], tuple[str, Policy]] = {}
        self._instances: dict[tuple[str, str], tuple[PolicyIntent, Policy]] = {}
        self.problems: Mapping[str, str] = {}
        """Policies that cannot be built, by name, and why; expected cost stands in for them."""

    def set_intent(self, intent: Intent, region: str) -> None:
        self._intent = intent
        self._region = region
        self._by_choice.clear()
        self._instances = {k: v for k, v in self._instances.items() if intent.policies.get(v[0].name) == v[0]}
        problems: dict[str, str] = {}
        for policy in intent.policies.values():
            try:
                build(self._registry, policy.algorithm, policy.parameters)
            except InvalidInput as error:
                problems[policy.name] = str(error)
        self.problems = problems

    def choose(self, facts: RequestFacts, model: str) -> tuple[str, Policy]:
        """(name of the policy resource, policy). The name is empty for the built-in default."""
        key = (facts.policy, facts.tenant_name, model, facts.sla_class)
        found = self._by_choice.get(key)
        if found is None:
            if len(self._by_choice) > 10_000:
                self._by_choice.clear()
            found = self._by_choice[key] = self._find(facts, model)
        return found

    def _find(self, facts: RequestFacts, model: str) -> tuple[str, Policy]:
        policies = self._intent.policies
        tenant = self._intent.tenants.get(facts.tenant_name)
        known = self._intent.models.get(model)
        for name in (facts.policy, tenant.policy if tenant else "", known.policy if known else ""):
            if name in policies:
                return name, self._instance(policies[name], model)
        for name in sorted(policies, key=lambda n: (-_narrowness(policies[n]), n)):
            if self._fits(policies[name], facts, model):
                return name, self._instance(policies[name], model)
        return "", self._default

    def _fits(self, policy: PolicyIntent, facts: RequestFacts, model: str) -> bool:
        return (
            matches(policy.models, model)
            and matches(policy.regions, self._region)
            and matches(policy.classes, facts.sla_class)
        )

    def _instance(self, policy: PolicyIntent, model: str) -> Policy:
        if policy.name in self.problems:
            return self._default
        key = (policy.name, model)
        if key not in self._instances:
            self._instances[key] = (policy, build(self._registry, policy.algorithm, policy.parameters))
        return self._instances[key][1]


def _narrowness(policy: PolicyIntent) -> int:
    """How many of its three criteria are not "everything": the narrower match governs."""
    return sum(patterns != ("*",) for patterns in (policy.models, policy.regions, policy.classes))
