"""One report per node when two watch it: its agent, and this router itself for endpoints that were written down by hand."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from fleet.endpoint import EndpointPhase, EndpointReport
from fleet.report import AgentPhase, NodeReport


class ReportMerge:
    """A node that an agent has spoken for is the agent's; what the embedded agent sees there is added to its reports."""

    def __init__(self) -> None:
        self._by_agent: set[str] = set()
        self._embedded: dict[str, NodeReport] = {}

    def from_agent(self, report: NodeReport) -> NodeReport:
        """The agent's report with the endpoints it does not know of."""
        self._by_agent.add(report.node_uid)
        seen = self._embedded.get(report.node_uid)
        if seen is None or not seen.endpoints:
            return report
        uids = {e.uid for e in report.endpoints}
        urls = {e.url for e in report.endpoints}
        added = [e for e in seen.endpoints if e.uid not in uids and e.url not in urls]
        if not added:
            return report
        real = {g.index: g.uuid for g in report.gpus if g.index is not None}
        stand_ins = {g.uuid: real.get(g.index, "") for g in seen.gpus if g.index is not None}
        added = [_with_real_devices(endpoint, stand_ins) for endpoint in added]
        if report.phase is AgentPhase.DRAINING:
            added = [_draining(endpoint) for endpoint in added]
        return replace(report, endpoints=(*report.endpoints, *added))

    def from_embedded(
        self, report: NodeReport, *, agent_gone: bool = False, after: tuple[int, int] | None = None
    ) -> NodeReport | None:
        """The report to use; None when the node has an agent, whose next report will carry what is new.

        ``agent_gone``: nobody will speak for the node any more. The report then follows ``after``, the last one's incarnation
        and sequence: two senders do not count alike. An agent that comes back starts with a higher incarnation.
        """
        if report.node_uid in self._by_agent:
            if not agent_gone:
                self._embedded[report.node_uid] = report
                return None
            self._by_agent.discard(report.node_uid)
        if report.endpoints:
            self._embedded[report.node_uid] = report
        else:
            self._embedded.pop(report.node_uid, None)
        if after is not None and report.order <= after:
            return replace(report, incarnation=after[0], sequence=after[1] + 1)
        return report

    def keep(self, known: Container[str], count: int) -> None:
        """Forget nodes that are not among the ``count`` that are known, when there are many of them."""
        if len(self._by_agent) <= 2 * count + 64:
            return
        self._by_agent = {uid for uid in self._by_agent if uid in known}
        self._embedded = {uid: report for uid, report in self._embedded.items() if uid in known}


def _draining(endpoint: EndpointReport) -> EndpointReport:
    """A node that goes away takes along what was written down for it."""
    if endpoint.phase not in (EndpointPhase.READY, EndpointPhase.WARMING):
        return endpoint
    return replace(endpoint, phase=EndpointPhase.DRAINING, reason="the node is draining")


def _with_real_devices(endpoint: EndpointReport, stand_ins: dict[str, str]) -> EndpointReport:
    """Declared devices have made-up uuids; the agent of the node knows the real ones by index."""
    uuids = tuple(stand_ins.get(uuid, uuid) for uuid in endpoint.gpu_uuids)
    known = endpoint.gpus_known and all(uuids)
    return replace(endpoint, gpu_uuids=uuids if known else (), gpus_known=known)
