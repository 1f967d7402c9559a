"""What a station controller does, with a real OPC UA client:

python vision_client.py URL parts FIRST END STATION [INTERVAL [FOLDER]]    inspect parts; a JSON line for each event
python vision_client.py URL die PART STATION                    start a job, and end in the middle of it
python vision_client.py URL hurry PART STATION                  start a job, and the next one while it is in work

INTERVAL is the publishing interval in milliseconds. With FOLDER, the client signs and encrypts with the certificate
that it makes there.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from asyncua import Client, ua

from procon.line.vision_system import NAMESPACE, RESULT_VARIABLES

SECONDS = 60.0
APPLICATION = "urn:procon:tests:client"


class Events:
    """Result events as they come."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def event_notification(self, event: Any) -> None:
        if hasattr(event, "ResultContent"):
            self.results.put_nowait({item.name: str(getattr(event, item.name)) for item in RESULT_VARIABLES})

    def status_change_notification(self, status: Any) -> None:
        pass


async def connect(url: str, folder: str | None) -> Client:
    for _ in range(int(SECONDS / 0.2)):
        client = Client(url, timeout=20)
        client.application_uri = APPLICATION
        if folder is not None:
            await secure(client, Path(folder))
        try:
            await client.connect()
        except (OSError, TimeoutError):
            await asyncio.sleep(0.2)
        else:
            return client
    raise TimeoutError("nothing listens")


async def secure(client: Client, folder: Path) -> None:
    from asyncua.crypto.cert_gen import setup_self_signed_certificate
    from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key, certificate = folder / "key.pem", folder / "client.der"
    use = [ExtendedKeyUsageOID.CLIENT_AUTH]
    await setup_self_signed_certificate(key, certificate, APPLICATION, "client", use, {"organizationName": "tests"})
    await client.set_security(SecurityPolicyBasic256Sha256, certificate=str(certificate), private_key=str(key))


async def main() -> None:
    url, action, *rest = sys.argv[1:]
    station = rest[2 if action == "parts" else 1]
    interval = float(rest[3]) if len(rest) > 3 else 0.0
    client = await connect(url, rest[4] if len(rest) > 4 else None)
    index = await client.get_namespace_index(NAMESPACE)
    root = await client.nodes.objects.get_child(f"{index}:{station}")
    machine = await root.get_child([f"{index}:VisionStateMachine", f"{index}:AutomaticModeStateMachine"])
    start = await machine.get_child(f"{index}:StartSingleJob")

    async def begin(part: int) -> str:
        while True:
            job, error = await machine.call_method(start, str(part), "", "")
            if error == 0:
                return str(job)
            assert error == 1, error
            await asyncio.sleep(0.01)

    if action == "die":
        await begin(int(rest[0]))
        os._exit(0)
    events = Events()
    subscription = await client.create_subscription(interval, events)
    kind = await client.nodes.base_event_type.get_child(f"{index}:ResultReadyEventType")
    await subscription.subscribe_events(root, kind)
    if action == "hurry":
        await begin(int(rest[0]))
        print(json.dumps(await machine.call_method(start, str(int(rest[0]) + 1), "", "")))
        print(json.dumps(await asyncio.wait_for(events.results.get(), SECONDS)), flush=True)
        await client.disconnect()
        return
    for part in range(int(rest[0]), int(rest[1])):
        job = await begin(part)
        while True:
            result = await asyncio.wait_for(events.results.get(), SECONDS)
            if result["ResultId"] == job:
                break
        again = await (await root.get_child(f"{index}:ResultManagement")).call_method(f"{index}:GetResultById", job)
        assert again[1] == 0 and json.loads(again[0])["id"] == job
        print(json.dumps(result), flush=True)
    await client.disconnect()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ua.UaError as error:
        sys.exit(f"refused: {type(error).__name__}")
