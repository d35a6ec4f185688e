"""Brings the demo up, and takes it down: network, control plane, routers and nodes, each waited for until it is ready."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

import aiohttp

from fleet.errors import Unavailable
from fleet.resources.keys import make_key
from headrace.demo.children import Child
from headrace.demo.engines import LLAMACPP_CONTEXT_TOKENS
from headrace.demo.layout import CONTEXT_TOKENS, HOST, Layout, NodeLayout, RegionLayout, fleet_documents
from headrace.demo.network import Network
from headrace.demo.node import NodeConfig

_START_SECONDS = 60.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Credentials:
    """Made anew for each run."""

    tenant_key: str = field(default_factory=lambda: make_key(secrets.token_bytes(20)), repr=False)
    admin_token: str = field(default_factory=lambda: "hra_" + secrets.token_hex(20), repr=False)
    bootstrap_token: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)
    secret_key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)


class Stage:
    """All processes of the demo. An async context manager: leaving it ends every one of them, however it is left."""

    def __init__(
        self,
        plan: Layout,
        directory: Path,
        *,
        engine: str = "simulated",
        model_file: str = "",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self.credentials = Credentials()
        self.network = Network(plan)
        self._directory = directory
        self._logs = directory / "logs"
        self._engine = engine
        self._model_file = model_file
        self._say = say
        self._stack = AsyncExitStack()
        self._http: aiohttp.ClientSession
        self._geoip = ""
        self._settings = {"HEADRACE_LOG_LEVEL": "info", "HEADRACE_LOG_FORMAT": "json"}
        self.controlplane: Child
        self.routers: dict[str, Child] = {}
        self.nodes: dict[str, Child] = {}

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        database = resources.as_file(resources.files("fleet.geo").joinpath("data/demo.mmdb"))
        self._geoip = str(self._stack.enter_context(database))
        timeout = aiohttp.ClientTimeout(total=5.0)
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        self._stack.push_async_callback(self._stop_all)
        self._stack.push_async_callback(self.network.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Being told to stop once more must not leave half of it running.
        await asyncio.shield(asyncio.ensure_future(self._stack.aclose()))

    async def start(self) -> None:
        """Everything up, and every engine in rotation. Raises Unavailable with what stood in the way."""
        await self.network.start()
        self._say("control plane")
        self.controlplane = self._child(
            "controlplane", ["-m", "headrace", "controlplane"], self._controlplane_settings()
        )
        await self.controlplane.start()
        ready = self._answers(f"{self.plan.rest_url}/readyz")
        await self._until("the control plane is ready", ready, [self.controlplane])
        router_tokens, join_token = await self._write_intent()
        self._say(f"{len(self.plan.regions)} routers and {len(self.plan.nodes)} nodes")
        for region in self.plan.regions:
            self.routers[region.name] = self._child(
                f"router-{region.name}",
                ["-m", "headrace", "router"],
                self._router_settings(region, router_tokens[region.name]),
            )
        for node in self.plan.nodes:
            self.nodes[node.name] = self._node_child(node, join_token)
        await asyncio.gather(*(child.start() for child in (*self.routers.values(), *self.nodes.values())))
        await self.until_in_rotation(self.plan.nodes)

    async def until_in_rotation(self, nodes: Iterable[NodeLayout], seconds: float = _START_SECONDS) -> None:
        """Wait until the routers send to every engine of these nodes."""
        wanted: dict[str, set[str]] = {}
        for node in nodes:
            wanted.setdefault(node.region, set()).add(node.name)
        for name, names in wanted.items():
            region = self.plan.region(name)
            children = [self.routers[name], *(self.nodes[node] for node in names)]

            async def ready(region: RegionLayout = region, names: set[str] = names) -> bool:
                return await self._nodes_ready(region, names)

            await self._until(f"the nodes of {name} are in rotation", ready, children, seconds)

    async def post_fault(self, node: NodeLayout, gpu: int, fault: str, code: int = 0) -> None:
        """Tell a node's simulated driver what happens to a GPU."""
        body: dict[str, Any] = {"device": str(gpu), "fault": fault}
        if code:
            body["code"] = code
        url = f"http://{HOST}:{node.admin_port}/simulated/faults"
        async with self._http.post(url, json=body) as answer:
            if answer.status != 204:
                raise Unavailable(f"{node.name} did not take the fault: {answer.status} {await answer.text()}")

    # --- settings of the processes ------------------------------------------------------------------------------------

    def _child(self, name: str, arguments: list[str], settings: dict[str, str]) -> Child:
        return Child(name, arguments, self._settings | settings, self._logs)

    def _controlplane_settings(self) -> dict[str, str]:
        return {
            "HEADRACE_CONTROLPLANE_HOST": HOST,
            "HEADRACE_CONTROLPLANE_PORT": str(self.plan.rest_port),
            "HEADRACE_CONTROLPLANE_GRPC_PORT": str(self.plan.grpc_port),
            "HEADRACE_STATE_DIR": str(self._directory / "controlplane"),
            "HEADRACE_BOOTSTRAP_ADMIN_TOKEN": self.credentials.bootstrap_token,
            "HEADRACE_SECRET_KEY": self.credentials.secret_key,
            "HEADRACE_GEOIP_DB": self._geoip,
            "HEADRACE_TRUSTED_PROXIES": "127.0.0.0/8",
        }

    def _router_settings(self, region: RegionLayout, token: str) -> dict[str, str]:
        return {
            "HEADRACE_ROUTER_HOST": HOST,
            "HEADRACE_ROUTER_PORT": str(region.router_port),
            "HEADRACE_ROUTER_GRPC_PORT": str(region.router_grpc_port),
            "HEADRACE_ROUTER_ADMIN_PORT": str(region.router_admin_port),
            "HEADRACE_REGION": region.name,
            "HEADRACE_CONTROLPLANE": f"{HOST}:{self.plan.grpc_port}",
            "HEADRACE_ROUTER_TOKEN": token,
            "HEADRACE_STATE_DIR": str(self._directory / f"router-{region.name}"),
            "HEADRACE_ADVERTISE": region.public_url,
            "HEADRACE_GEOIP_DB": self._geoip,
            "HEADRACE_TRUSTED_PROXIES": "127.0.0.0/8",
            "HEADRACE_EXPOSE": "all",
        }

    def _node_child(self, node: NodeLayout, join_token: str) -> Child:
        region = self.plan.region(node.region)
        zone = next(zone for zone in region.zones if zone.name == node.zone)
        router = f"{HOST}:{region.router_grpc_port}"
        state = self._directory / node.name
        state.mkdir(parents=True, exist_ok=True)
        config = NodeConfig.of(
            node,
            state_dir=str(state),
            engine_kind=self._engine,
            model_file=self._model_file,
            routers=(router,),
            dial={router: f"{HOST}:{zone.grpc_port}"},
        )
        path = self._directory / f"{node.name}.json"
        config.write(path)
        return self._child(
            f"node-{node.name}", ["-m", "headrace.demo.node", str(path)], {"HEADRACE_JOIN_TOKEN": join_token}
        )

    # --- intent -------------------------------------------------------------------------------------------------------

    async def _write_intent(self) -> tuple[dict[str, str], str]:
        """Apply the fleet and make tokens, as an operator would: the routers' by region, and the agents' to join with."""
        bootstrap, admin = self.credentials.bootstrap_token, self.credentials.admin_token
        token = {"kind": "admin-token", "name": "demo", "spec": {"role": "admin", "secret": admin}}
        await self._api("admin-tokens", token, bootstrap)
        context = LLAMACPP_CONTEXT_TOKENS if self._engine == "llamacpp" else CONTEXT_TOKENS
        await self._api("apply", fleet_documents(self.plan, self.credentials.tenant_key, context), admin)
        router_tokens = {}
        for region in self.plan.regions:
            spec = {"role": "router", "region": region.name}
            made = await self._api("admin-tokens", {"name": f"router-{region.name}", "spec": spec}, admin)
            router_tokens[region.name] = str(made["secret"])
        join = {"name": "demo", "spec": {"uses": len(self.plan.nodes), "ttl_seconds": 3600}}
        made = await self._api("join-tokens", join, admin)
        return router_tokens, str(made["secret"])

    async def _api(self, path: str, body: Any, token: str) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        async with self._http.post(f"{self.plan.rest_url}/api/v1/{path}", json=body, headers=headers) as answer:
            if answer.status >= 300:
                raise Unavailable(f"the control plane refused {path}: {answer.status} {(await answer.text())[:500]}")
            return await answer.json()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _answers(self, url: str) -> Callable[[], Awaitable[bool]]:
        async def asked() -> bool:
            try:
                async with self._http.get(url) as answer:
                    return answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False

        return asked

    async def _nodes_ready(self, region: RegionLayout, names: set[str]) -> bool:
        try:
            async with self._http.get(f"http://{HOST}:{region.router_admin_port}/debug/endpoints") as answer:
                if answer.status != 200:
                    return False
                nodes = (await answer.json())["nodes"]
        except (aiohttp.ClientError, TimeoutError):
            return False
        up = {node["name"]: node for node in nodes if node["state"] == "ready"}
        return all(
            name in up
            and sum(endpoint["phase"] == "ready" for endpoint in up[name]["endpoints"]) == len(layout.engines)
            for name in names
            for layout in region.nodes
            if layout.name == name
        )

    async def _until(
        self,
        what: str,
        condition: Callable[[], Awaitable[bool]],
        children: Iterable[Child],
        seconds: float = _START_SECONDS,
    ) -> None:
        """Poll until it holds. Raises Unavailable when a process it depends on has ended, or time is up."""
        watched = list(children)
        try:
            async with asyncio.timeout(seconds):
                while not await condition():
                    for child in watched:
                        child.check()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            words = "; ".join(f"{child.name}: {child.last_words()}" for child in itertools.islice(watched, 3))
            raise Unavailable(f"waited {seconds:.0f} s until {what}, in vain. {words}") from None

    async def _stop_all(self) -> None:
        """Nodes and routers first, then the control plane they talk to."""
        await asyncio.gather(*(child.stop() for child in (*self.nodes.values(), *self.routers.values())))
        if hasattr(self, "controlplane"):
            await self.controlplane.stop()
