"""Everything a router speaks, over TLS: clients, agents, peers, hops, the admin port."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest

from fleet.process.settings import TlsSettings
from fleet.process.tls import TlsFiles
from regional.settings import RouterSettings
from tests.edges.certificates import Authority
from tests.router.engines import BareEngine
from tests.router.routers import fleet_file, router
from tests.router.scripted_agent import ScriptedAgent
from tests.router.waiting import until
from tests.services import free_port


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    """One certificate for this machine and the authority it comes from."""
    authority = Authority.create("test authority")
    authority.issue(tmp_path / "cert.pem", tmp_path / "key.pem")
    authority.write(tmp_path / "ca.pem")
    return TlsSettings(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem", ca=tmp_path / "ca.pem")


async def test_clients_agents_peers_and_hops_over_tls(tmp_path: Path, tls: TlsSettings) -> None:
    ports = {"eu": free_port(), "us": free_port()}
    urls = {name: f"https://127.0.0.1:{port}" for name, port in ports.items()}
    context = ssl.create_default_context(cafile=str(tls.ca))

    def settings(region: str) -> RouterSettings:
        path = fleet_file(tmp_path / f"{region}.yaml", region=region, regions=("eu", "us"), public_urls=urls)
        return RouterSettings.embedded(
            fleet=str(path), region=region, port=ports[region], tls=tls, secret_key=["a key that both regions share"]
        )

    async with BareEngine("one").serving() as one, router(settings("us")) as us, router(settings("eu")) as eu:
        for running in (us, eu):
            running.trust(context)
        agent = ScriptedAgent(us.grpc, "node-one", one, zone="us-a", tls=TlsFiles(TlsSettings(ca=tls.ca)))
        async with agent.running():
            await until(us.serves)
            await until(eu.serves)
            _, headers, _ = await eu.chat()
            assert headers["x-headrace-region"] == "us"
        assert (await us.metric("headrace_certificate_expiry_timestamp_seconds") or 0) > 1e9
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with aiohttp.ClientSession() as session, session.get(eu.url + "/livez"):
                pass
