"""Many who each translate a sentence every few seconds: as tabs of the page do, over HTTP, or the same calls by gRPC.

Prints a line once it is connected, and at the end a JSON list of the seconds until each first word. It yields to
others as engines do, because browsers are on other machines.

usage: python -m bench.load.web_tabs GRPC_ADDRESS PAGE_ADDRESS|- COUNT SECONDS TEXT
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

from glossa.client import AsyncClient

PAUSE_S = 5.0
MODEL = "model"


async def fetch(page: str, path: str, body: object = None) -> float:
    """Sends a request of its own connection and reads the answer: seconds until its first text. page: HOST:PORT."""
    host, port = page.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    began, first, answer = time.perf_counter(), 0.0, b""
    try:
        writer.write(head.encode() + data)
        while part := await reader.read(1 << 16):
            answer += part
            if not first and b'"text"' in answer:
                first = time.perf_counter() - began
    finally:
        writer.close()
    assert b" 200 " in answer.partition(b"\r\n")[0], answer[:500]
    return first


async def first_word(client: AsyncClient, text: str, *, confidence: bool) -> float:
    """Seconds until the first word of a stream, which is read to its end."""
    began, first = time.perf_counter(), 0.0
    async for piece in client.stream_translate(text, model=MODEL, confidence=confidence):
        if piece.text and not first:
            first = time.perf_counter() - began
    return first


async def tabs(address: str, page: str, count: int, seconds: float, text: str) -> list[float]:
    """page: HOST:PORT; "": by gRPC."""
    rng, firsts = random.Random(1), list[float]()

    async def tab(client: AsyncClient, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            if page:
                await fetch(page, "/api/server")
                body = {"model": MODEL, "text": text, "confidence": is_sure}
                firsts.append(await fetch(page, "/api/stream_translate", body))
            else:
                firsts.append(await first_word(client, text, confidence=is_sure))
            if time.monotonic() + PAUSE_S > until:
                return
            await asyncio.sleep(PAUSE_S)

    async with AsyncClient(address) as client:
        is_sure = (await client.get_model(MODEL)).HasField("calibration")  # as the page asks
        print("connected", flush=True)
        until = time.monotonic() + seconds
        await asyncio.gather(*(tab(client, rng.random() * min(PAUSE_S, seconds)) for _ in range(count)))
    return firsts


if __name__ == "__main__":
    os.nice(10)
    server, page, count, seconds, text = sys.argv[1:]
    found = asyncio.run(tabs(server, "" if page == "-" else page, int(count), float(seconds), text))
    print(json.dumps(found))
