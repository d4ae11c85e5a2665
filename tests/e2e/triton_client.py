"""What tritonclient, unmodified, gets of a server: a program of its own, as its protocol's names clash with ours.

Prints one JSON object. Usage: python triton_client.py ADDRESS TEXT OTHER_TEXT
"""

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

address, *texts = sys.argv[1:]


def inputs(*texts, **options):
    """The tensors of texts, and of options that are whole numbers."""
    tensors = [triton.InferInput("text_input", [len(texts)], "BYTES")]
    tensors[0].set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object))
    for name, value in options.items():
        tensors.append(triton.InferInput(name, [1], "INT32"))
        tensors[-1].set_data_from_numpy(np.array([value], np.int32))
    return tensors


def texts_of(result):
    return [text.decode() for text in result.as_numpy("text_output").ravel()]


def failure(call):
    try:
        call()
    except InferenceServerException as error:
        return [error.status(), error.message()]
    return None


def collect(results, answers):
    """Of each answer its pieces, or its error, by the order in which they came."""
    found = list[dict[str, object]]()
    pieces = list[str]()
    while len(found) < answers:
        result, error = results.get(timeout=60)
        if error is not None:
            found.append({"error": error.message(), "status": error.status()})
            continue
        pieces += texts_of(result)
        if result.get_response().parameters["triton_final_response"].bool_param:
            found.append({"id": result.get_response().id, "pieces": pieces})
            pieces = []
    return found


found: dict[str, Any] = {}
with triton.InferenceServerClient(address) as client:
    found["ready"] = [client.is_server_live(), client.is_server_ready(), client.is_model_ready("en-de")]
    found["metadata"] = [client.get_server_metadata().name, client.get_model_metadata("en-de").name]
    found["one"] = texts_of(client.infer("en-de", inputs(texts[0]), parameters={"max_tokens": 16}))
    found["rows"] = texts_of(client.infer("en-de", inputs(*texts, max_tokens=16), parameters={"beam_size": 4}))
    found["errors"] = [
        failure(lambda: client.infer("fr", inputs(texts[0]))),
        failure(lambda: client.infer("en-de", inputs(texts[0]), parameters={"beam_size": 99})),
        failure(lambda: client.infer("en-de", inputs(texts[0]), client_timeout=0.000001)),
    ]
    results: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    for number, text in enumerate((texts[0], "unheard-of", texts[1])):
        client.async_stream_infer(
            "en-de",
            inputs(text),
            request_id=str(number),
            parameters={"max_tokens": 16},
            enable_empty_final_response=True,
        )
    found["stream"] = collect(results, 3)
    client.stop_stream()
    client.start_stream(lambda result, error: results.put((result, error)))
    for _ in range(50):
        client.async_stream_infer("en-de", inputs(texts[0]), parameters={"ignore_eos": True})
    results.get(timeout=60)  # one piece has come
    client.stop_stream(cancel_requests=True)
    last = None
    while not results.empty():
        last = results.get()
    found["cancelled"] = last and last[1] and last[1].status()
print(json.dumps(found))
