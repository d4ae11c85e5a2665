import os
import sys

from glossa.client import Client, ClientError, tls_credentials

address, text, *prompts = sys.argv[1:]
tls, token = os.environ.get("GLOSSA_TLS_CA", False), os.environ.get("GLOSSA_TOKEN", "")
if certificate := os.environ.get("GLOSSA_CLIENT_CERT"):
    tls = tls_credentials(authority=tls or None, certificate=certificate, key=os.environ["GLOSSA_CLIENT_KEY"])

with Client(address, tls=tls, token=token) as client:
    print("unary:", client.translate(text, max_tokens=16).text)
    print("stream:", "|".join(piece.text for piece in client.stream_translate(text, max_tokens=16)))
    for prompt in prompts:
        print("generate:", client.generate(prompt, max_tokens=12).text)

    try:
        client.translate(text, beam_size=99)
    except ClientError as error:
        print("error:", error.code, error.reason, error.message)

    try:
        client.translate(text, ignore_eos=True, timeout_s=0.005)
    except ClientError as error:
        print("deadline:", error.code)

    stream = client.stream_translate(text, ignore_eos=True)
    next(stream)
    stream.close()  # leaving a loop early does the same when the generator is collected
    print("cancel: CANCELLED")
