"""What the fuzzer runs (`Reader`): a function of bytes from outside, and what it may raise."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

MAX_MESSAGE = 2000  # characters of an error: what it quotes of its input is cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """read: raises nothing but `errors`, each with a message that is not empty; AssertionError where a property does
    not hold. seeds: valid inputs. words: which mutations insert. max_bytes: of an input."""

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    words: Sequence[str] = ()
    max_bytes: int = 4096

    def __call__(self, data: bytes) -> None:
        """Reads an input. Raises what is a finding."""
        message = "none"
        try:
            self.read(data)
        except self.errors as error:
            message = str(error)
        check_message(message)


def check_message(message: str) -> None:
    """Raises AssertionError and UnicodeError for the message of an error that cannot be sent, or says nothing."""
    assert message.strip(), "an error has no message"
    assert len(message) <= MAX_MESSAGE, f"a message of {len(message)} characters: {message[:80]!r}"
    message.encode()


def in_file(read: Callable[[Path], object], path: Path) -> Callable[[bytes], object]:
    """A reader of files as one of bytes."""

    def from_bytes(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return from_bytes


def by_first_byte(*reads: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """Several readers as one: the first byte selects."""

    def from_bytes(data: bytes) -> object:
        return reads[data[0] % len(reads)](data[1:]) if data else None

    return from_bytes


def text_of(data: bytes) -> str:
    """What a field of text can have: valid UTF-8."""
    return data.decode("utf-8", "ignore")
