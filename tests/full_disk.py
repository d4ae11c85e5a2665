"""A disk on which the n-th operation fails: the double behind every "old data is intact" test."""

import errno

from model.checkpoints.atomic_write import Disk, parts_of


class FullDisk(Disk):
    """Fails operation number `failing`, from 1, with ENOSPC; a failing write leaves half of its data behind."""

    def __init__(self, failing):
        self.failing = failing
        self.operations = 0

    def _count(self):
        self.operations += 1
        if self.operations == self.failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, path, data):
        try:
            self._count()
        except OSError:
            whole = b"".join(parts_of(data))
            super().write(path, whole[: len(whole) // 2])
            raise
        super().write(path, data)

    def sync(self, path):
        self._count()
        super().sync(path)

    def rename(self, source, target):
        self._count()
        super().rename(source, target)


def failures(save):
    """Run save(disk) with the first, second, … operation failing; yields after every failed run, stops at one without.

    Each yield gives the error that save raised.
    """
    failing = 1
    while True:
        disk = FullDisk(failing)
        try:
            save(disk)
        except Exception as error:
            yield error
        else:
            assert disk.operations < failing, "a failing operation was swallowed"
            return
        failing += 1
