"""One state of each kind, for tests of caches and their layout."""

from export.bundle.manifest import StateSpec

SELF = StateSpec(name="self_key.0", kind="self_kv", dtype="float32", shape=("batch", 2, "capacity", 4))
CROSS = StateSpec(name="cross_key.0", kind="cross_kv", dtype="float16", shape=("batch", 2, "source", 4))
STRIDED = StateSpec(name="self_key.1", kind="self_kv", dtype="float32", shape=("batch", 2, "capacity", 4), stride=3)
WINDOWED = StateSpec(name="self_key.2", kind="self_kv", dtype="float32", shape=("batch", 2, "capacity", 4), window=9)
WORDS = StateSpec(name="word_weight", kind="shortlist", dtype="int8", shape=("batch", 6, "shortlist"))
RECURRENT = StateSpec(name="memory.0", kind="recurrent", dtype="float32", shape=("batch", 3, 5))
