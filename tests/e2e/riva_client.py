"""What nvidia-riva-client, unmodified, gets of a server: a program of its own, as its protocol's names clash with ours.

Prints one JSON object. Usage: python riva_client.py ADDRESS MODEL TEXT ...
"""

import json
import sys

import grpc
import riva.client

address, model, *texts = sys.argv[1:]
client = riva.client.NeuralMachineTranslationClient(riva.client.Auth(uri=address))


def translated(*some, **fields):
    return client.translate(list(some), model, "en", "de", **fields).translations


def failure(call):
    try:
        call()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return None


def late():
    """Riva's client waits at most as long as it is told; no deadline is sent."""
    future = client.translate(texts * 16, model, "en", "de", future=True)
    try:
        future.result(timeout=0.001)
    except grpc.FutureTimeoutError as error:
        future.cancel()
        return type(error).__name__
    return None


missing = failure(lambda: client.translate(texts, "no-model", "en", "de"))
print(
    json.dumps(
        {
            "translate": client.translate(texts[:1], model, "en", "de", future=True).result().translations[0].text,
            "batch": [one.text for one in translated(*texts)],
            "detect": None,
            "error": missing and missing[0],
            "deadline": late(),
            "named": [[one.text, one.language] for one in translated(texts[0])],
            "errors": [
                failure(lambda: translated(texts[0], "")),
                failure(lambda: translated(texts[0], max_len_variation="20")),
            ],
            "pairs": {
                name: [list(pair.src_lang), list(pair.tgt_lang)]
                for name, pair in client.get_config("").languages.items()
            },
        }
    )
)
