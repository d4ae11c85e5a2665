"""From settings and manifests to the numbers of a prediction."""

from dataclasses import replace

from export.bundle.manifest import AlignmentSpec, FileDigest, GraphSpec, StateSpec, Variant
from service.edge.models.process_plan import OPENING_BYTES, ProcessMemory, ProcessPlan
from service.edge.versions.memory_plan import advice, model_plan, model_shape, predict_memory, process_memory
from service.machine.execution_choice import SINGLE_ENGINE_MIN_BYTES
from service.machine.processors import Processors
from tests.edge import manifest, settings

ONE, TWO = Processors(1, 1, None), Processors(2, 2, None)
STATES = (
    StateSpec(name="key", kind="self_kv", dtype="float32", shape=("batch", 4, "capacity", 8)),
    StateSpec(name="cross", kind="cross_kv", dtype="int8", shape=("batch", 4, "source", 8)),
)


def model(sizes=None, **changes):
    """A model whose graphs have these bytes."""
    sizes = sizes or {"encode": 1000, "decode": 2000}
    graphs = {role: GraphSpec(role=role, file=f"{role}.onnx", inputs=(), outputs=()) for role in sizes}
    files = {f"{role}.onnx": FileDigest(sha256="", bytes=size) for role, size in sizes.items()}
    files["tokenizer.json"] = FileDigest(sha256="", bytes=500)
    variants = (Variant(precision="fp32", graphs=graphs, states=STATES),)
    return replace(manifest(), variants=variants, files=files, **changes)


def test_sizes_of_a_model():
    found = model()
    shape = model_shape(settings(), found, ONE)
    assert (shape.layout.target_bytes, shape.layout.source_bytes) == (4 * 8 * 4, 4 * 8)
    assert (shape.opened, shape.opened_later, shape.tokenizer) == (3000, 0, 500)
    assert shape.max_source_len == found.limits.max_source_len
    assert shape.attention == 0


def test_weights_that_are_opened_a_second_time():
    large = model({"encode": 1000, "decode": SINGLE_ENGINE_MIN_BYTES})
    both = 1000 + SINGLE_ENGINE_MIN_BYTES

    def opened(found, usable, **changes):
        shape = model_shape(settings(**changes), found, usable)
        return shape.opened, shape.opened_later

    assert opened(large, ONE) == (both, 0)
    assert opened(large, TWO) == (both, SINGLE_ENGINE_MIN_BYTES), "when a single engine has been busy for long"
    assert opened(large, TWO, single_engine_threads=1) == (both, 0)
    assert opened(large, TWO, single_engine_threads=2) == (both + SINGLE_ENGINE_MIN_BYTES, 0), "at the start"
    assert opened(model({"decode": 2000, "attend": 700}), TWO) == (2000, 700), "on demand"


def test_a_process_may_allocate_far_more_than_is_predicted_unless_a_setting_says_how_much():
    plan = ProcessPlan(2, 3)
    opening = OPENING_BYTES + 8 * 3500
    peak = predict_memory(settings(), [(model(), plan)], TWO).process_peak(0)
    assert process_memory(settings(), model(), plan, TWO) == ProcessMemory(opening, 2 * peak + OPENING_BYTES)
    for limit in (0, 1 << 30):
        assert process_memory(settings(process_memory_bytes=limit), model(), plan, TWO) == ProcessMemory(0, limit)
    assert process_memory(settings(device="cuda"), model(), plan, TWO) == ProcessMemory()


def test_attention_is_that_of_the_longest_texts():
    spec = AlignmentSpec(layers=2, heads=4, default_layer=1)
    found = model(alignment=spec)
    lengths = found.limits.max_source_len * found.limits.max_target_len
    assert model_shape(settings(), found, ONE).attention == min(1 << 28, 4 * 32 * 2 * 4 * lengths)


def test_each_engine_has_its_share_of_the_limits():
    plan = model_plan(settings(parking_bytes=600, kv_cache_bytes=900), model(), ProcessPlan(3, 2), TWO)
    assert (plan.engine.parking_bytes, plan.engine.kv_cache_bytes, plan.engine.max_rows) == (100, 150, 64)
    assert (plan.processes, plan.engines_per_process) == (3, 2)


def test_a_model_on_a_device_is_counted_by_the_graphs_it_has_there():
    graphs = {
        role: GraphSpec(role=role, file=f"fp16/{role}.onnx", inputs=(), outputs=()) for role in ("decode", "attend")
    }
    found = model()
    half = Variant(precision="fp16", graphs=graphs, states=STATES)
    sizes = {"fp16/decode.onnx": FileDigest(sha256="", bytes=70), "fp16/attend.onnx": FileDigest(sha256="", bytes=9)}
    both = replace(found, variants=(*found.variants, half), files={**found.files, **sizes})
    plans = [(both, ProcessPlan(1, 1)), (both, ProcessPlan(1, 1))]
    plan = model_plan(settings(), *plans[0], TWO, on_device=True)
    assert (plan.shape.opened, plan.shape.opened_later, plan.on_device) == (70, 9, True)
    prediction = predict_memory(settings(), plans, TWO, on_device=[1])
    assert "kv_cache" in prediction.processes[0]
    assert "kv_cache" not in prediction.processes[1]
    assert prediction.processes[0] == predict_memory(settings(), [(found, ProcessPlan(1, 1))], TWO).processes[0]


def test_limits_lower_the_prediction_as_advised():
    def prediction(**changes):
        return predict_memory(settings(**changes), [(model(), ProcessPlan(2, 1))], TWO)

    default = prediction()
    assert advice(default).startswith("--max-requests or --max-message-bytes (messages, ")
    assert "--request-memory-bytes (requests, 268 MB)" in advice(default)
    for changes in ({"max_requests": 100}, {"max_message_bytes": 10_000}, {"request_memory_bytes": 1 << 24}):
        assert prediction(**changes).total < default.total - 200_000_000
    assert prediction(parking_bytes=0).total == default.total - (1 << 28)
