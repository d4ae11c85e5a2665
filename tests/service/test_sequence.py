import ast
from pathlib import Path

from service.decoding.search import search_for
from service.errors import Cancelled
from service.request import FinishReason, Request
from service.sequence import Hypothesis, Sequence


def sequence(prompt=(1,), max_tokens=3):
    request = Request(request_id="r", prompt=prompt, max_tokens=max_tokens)
    return Sequence(request, search_for(request, eos_ids=(2,)))


def test_the_first_outcome_counts():
    asked = sequence()
    asked.finish(Cancelled("gone"))
    asked.finish(FinishReason.LENGTH)
    assert isinstance(asked.outcome, Cancelled)


def test_a_failed_report_replaces_a_successful_outcome():
    asked = sequence()
    asked.finish(FinishReason.LENGTH)
    asked.fail(Cancelled("gone"))
    assert isinstance(asked.outcome, Cancelled)


def test_an_accepted_draft_token_counts_as_computed():
    asked = sequence()
    asked.accept_draft_token()
    assert asked.num_computed == 1


def test_a_sequence_that_goes_back_waits_for_no_turn():
    asked = sequence()
    asked.num_computed, asked.unread = 7, 3
    asked.go_back(5)
    assert (asked.num_computed, asked.unread) == (5, 0)


def test_a_fork_shares_its_past_and_not_its_future():
    hypothesis = Hypothesis(processor_states=("state",))
    hypothesis.tokens, hypothesis.logprobs, hypothesis.score, hypothesis.row = [5], [-1.0], -1.0, 3
    twin = hypothesis.fork()
    twin.tokens.append(6)
    twin.logprobs.append(-2.0)
    assert (hypothesis.tokens, hypothesis.logprobs) == ([5], [-1.0])
    assert (twin.processor_states, twin.score, twin.row) == (("state",), -1.0, 3)


# ---- who may write

WRITERS = {
    "service/engine/scheduler.py": {"max_shape", "num_computed", "unread", "draft_tokens", "row_s"},
    "service/engine/parking.py": {"rows", "slot"},
    "service/engine/prefill.py": {"num_computed"},
    "service/engine/row_assignment.py": {"rows"},
    "service/decoding/": {"hypotheses", "width", "steps", "num_generated", "committed_tokens", "encoder_output"},
}


def written(source):
    """(line, attribute) of every attribute of a sequence that a module assigns, of whatever is not `self`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        if node.attr in Sequence.__slots__ and ast.unparse(node.value) != "self":
            yield node.lineno, node.attr


def test_every_attribute_of_a_sequence_has_one_writer():
    root = Path(__file__).resolve().parents[2]
    found = {path.relative_to(root).as_posix(): path.read_text() for path in (root / "service").rglob("*.py")}
    broken = [
        f"{path}:{line}: may not write {attribute}"
        for path, source in found.items()
        for line, attribute in written(source)
        if not any(path.startswith(writer) and attribute in own for writer, own in WRITERS.items())
    ]
    assert broken == []


def test_a_second_writer_would_be_found():
    source = "def f(sequence, plan):\n    sequence.rows, plan.rows[0].outcome = (), None\n    del sequence.width\n"
    assert sorted(written(source)) == [(2, "outcome"), (2, "rows"), (3, "width")]
