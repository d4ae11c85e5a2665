from hypothesis import given
from hypothesis import strategies as st

from service.decoding.aho_corasick import ROOT, AhoCorasick

sequences = st.lists(st.integers(0, 2), max_size=30)
patterns = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=5)


def naive(patterns, sequence):
    """The longest end of the sequence that begins a pattern, and the patterns that the sequence ends with."""
    beginnings = [pattern[:length] for pattern in patterns for length in range(len(pattern) + 1)]
    held = max((found for found in beginnings if sequence[len(sequence) - len(found) :] == found), key=len)
    ending = {place for place, pattern in enumerate(patterns) if sequence[len(sequence) - len(pattern) :] == pattern}
    return held, ending


@given(patterns, sequences)
def test_every_step_agrees_with_reading_the_whole_sequence(patterns, sequence):
    automaton = AhoCorasick(patterns)
    paths = [automaton.path(place) for place in range(len(patterns))]
    depth = {ROOT: 0} | {node: length for path in paths for length, node in enumerate(path, start=1)}
    node = ROOT
    for length, symbol in enumerate(sequence, start=1):
        node = automaton.step(node, symbol)
        held, ending = naive(patterns, sequence[:length])
        assert depth[node] == len(held)
        assert set(automaton.ends[node]) == ending
        chain = [depth[at] for at in automaton.chain(node)]
        shorter = [cut for cut in range(len(held), 0, -1) if naive(patterns, held[len(held) - cut :])[0] == held[-cut:]]
        assert chain == shorter


@given(patterns)
def test_the_path_of_a_pattern_are_its_beginnings(patterns):
    automaton = AhoCorasick(patterns)
    for place, pattern in enumerate(patterns):
        node, path = ROOT, []
        for symbol in pattern:
            node = automaton.step(node, symbol)
            path.append(node)
        assert list(automaton.path(place)) == path
        assert place in automaton.ends[path[-1]]
    assert len(automaton) == 1 + len({tuple(pattern[:length]) for pattern in patterns for length in range(1, 6)})
