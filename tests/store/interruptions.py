"""A folder in S3 that stops answering at a chosen step."""

from __future__ import annotations

from pathlib import Path

from store.bucket import BucketFolder, StoredFile, Unreachable


class Interrupted(BucketFolder):
    """Passes `steps` writes on to the real folder, then fails."""

    def __init__(self, real: BucketFolder, steps: int) -> None:
        self.__dict__.update(real.__dict__)
        self._left = steps

    def put_text(self, name: str, text: str) -> None:
        self._step()
        super().put_text(name, text)

    def upload(self, source: Path, file: StoredFile) -> None:
        self._step()
        super().upload(source, file)

    def _step(self) -> None:
        if not self._left:
            raise Unreachable(f"{self.address}: the line is dead")
        self._left -= 1
