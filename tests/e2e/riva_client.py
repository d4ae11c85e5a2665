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
    answer = client.translate(list(some), model, "en", "de", **fields)
    return [[one.text, one.language] for one in answer.translations]


def failure(call):
    try:
        call()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return None


print(
    json.dumps(
        {
            "many": translated(*texts),
            "future": [
                one.text for one in client.translate(texts[:1], model, "en", "de", future=True).result().translations
            ],
            "errors": [
                failure(lambda: client.translate(texts, "no-model", "en", "de")),
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
