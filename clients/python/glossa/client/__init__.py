"""A client of Glossa: `Client` for blocking calls, `AsyncClient` for asyncio. Needs gRPC and the stubs alone."""

from glossa.client.client import AsyncClient as AsyncClient
from glossa.client.client import Client as Client
from glossa.client.client import ClientError as ClientError
from glossa.client.client import Options as Options
from glossa.client.client import ScoreOptions as ScoreOptions
from glossa.client.client import closest as closest
