"""One checkpoint of a stored window.

step, step, …, step       image + blocks that it names       pointer           garbage of older images
copies of the window ──▶  in the background            ──▶   in one commit ──▶ deleted in the background
nobody writes             the window is served again         the image counts

states    TAKING ──▶ WRITING ──▶ STORED       the pointer names the image
             │          ├──────▶ REFUSED      the tier has no space for the image; nothing of it is left
             │          └──────▶ ABANDONED    the window was deleted meanwhile
             └─────────────────▶ FAILED       a step failed, or the window was deleted
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping

import xxhash

from sash.durability import formats as values
from sash.durability.images.image import Image
from sash.durability.images.manifest import ImageDraft, Ranges, StoredImage, ranges_of
from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.group_commit import BackgroundWrite
from sash.durability.journal.journal import CHUNK_BYTES
from sash.durability.journal.session import STORING, TierSession
from sash_engine.errors import OutOfRoom


class Progress(enum.Enum):
    """How far a checkpoint is; the module draws it."""

    TAKING = "taking"
    WRITING = "writing"
    STORED = "stored"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    FAILED = "failed"


class Checkpoint:
    """Takes an image of a window in steps, and has it written in the background.

    Call `step` until it returns False. Nobody may write to the window from the first step to the last: the window
    does not admit writers meanwhile.

    Args:
        session: the tier.
        stored: the window.
        ended: called once with the checkpoint when it is STORED or REFUSED.

    Attributes:
        progress: how far it is.
        error: why the tier refused the image; None unless it is REFUSED.
    """

    def __init__(self, session: TierSession, stored: StoredWindow, ended: Callable[[Checkpoint], None]) -> None:
        self._session, self._stored, self._ended = session, stored, ended
        self.progress = Progress.TAKING
        self.error: OutOfRoom | None = None
        self._begun = False
        self._image: Image | None = None
        self._steps: Iterator[None] = iter(())
        self._writer: _ImageWriter | None = None
        self._logged_bytes = 0
        self._through = 0

    # ---------------------------------------------------------------- taking the image

    def step(self) -> bool:
        """Copy a part of the window; False after the last step, when the image is on its way to the tier.

        Raises:
            Unavailable, DataLoss: a block that the image needs cannot be read. The checkpoint FAILED.
            OutOfRoom: the tier has no space for blocks that the image names. The checkpoint FAILED.
        """
        assert self.progress is Progress.TAKING, f"a checkpoint that is {self.progress.value} takes no step"
        if not self._begun:
            self._stored.begin_snapshot()
            self._begun = True
        try:
            if self._image is None:
                self._stored.window.slide()
                self._image = Image(self._stored.window, self._stored.blocks.save)
                self._steps = self._image.steps()
            for _ in self._steps:
                return True
            self._stored.blocks.flush()
            self._write(self._image)
        except BaseException:
            self._fail()
            raise
        self._stored.end_snapshot()
        return False

    def cancel(self) -> None:
        """Give up before the last step: the window was deleted. The checkpoint FAILED."""
        assert self.progress is Progress.TAKING, f"a checkpoint that is {self.progress.value} cannot be cancelled"
        if self._begun:
            self._fail()
        else:
            self.progress = Progress.FAILED

    def _fail(self) -> None:
        self.progress = Progress.FAILED
        try:
            self._stored.blocks.flush()
        finally:
            self._stored.end_checkpoint()
            self._stored.end_snapshot()

    # ---------------------------------------------------------------- writing the image

    def _write(self, image: Image) -> None:
        """Begin to write the image, right after its last step."""
        stored = self._stored
        self.progress = Progress.WRITING
        self._through = self._session.journal.last
        self._logged_bytes = stored.take_logged()
        # The last step released what was evicted, and nothing that the image names.
        draft = stored.manifest.begin_image(stored.cold.take_released(), stored.window.ledger.copy())
        self._writer = _ImageWriter(self._session, stored.manifest.window, image, draft)
        self._go_on(self._writer)

    def _go_on(self, writer: _ImageWriter) -> None:
        """Write the next parts, or the pointer behind the last one."""
        if self._stored.is_deleted:
            self._abandon(writer)
        elif not writer.finished:
            write = BackgroundWrite(
                writer.next_parts(), size=CHUNK_BYTES, done=lambda: self._go_on(writer), refused=self._refuse
            )
            self._session.journal.background(write)
        else:
            found = writer.stored_image(self._through)
            puts = self._stored.manifest.pointer(found, self._session.id)
            write = BackgroundWrite(lambda: puts, size=100, done=lambda: self._publish(writer, found))
            self._session.journal.background(write)

    def _publish(self, writer: _ImageWriter, image: StoredImage) -> None:
        """The tier has the pointer: the image counts."""
        if self._stored.is_deleted:
            self._abandon(writer)
            return
        self.progress = Progress.STORED
        self._stored.end_checkpoint()
        self._stored.manifest.publish(writer.draft, image, self._session)
        self._ended(self)

    def _abandon(self, writer: _ImageWriter) -> None:
        """The window was deleted: leave the image to whoever deletes its values."""
        self.progress = Progress.ABANDONED
        self._stored.manifest.abandon(writer.draft, writer.parts)
        self._stored.end_checkpoint()

    def _refuse(self, error: OutOfRoom) -> None:
        """The tier has no space for the image: delete what it has of it."""
        writer = self._writer
        assert writer is not None, "a part was refused"
        keys = self._stored.manifest.image_keys(writer.draft.version, writer.parts)
        self._session.discard(self._stored.number, keys, lambda: self._withdraw(writer, error))

    def _withdraw(self, writer: _ImageWriter, error: OutOfRoom) -> None:
        """Nothing of the image is left: the window is as if the checkpoint had not begun."""
        if self._stored.is_deleted:
            writer.parts = 0
            self._abandon(writer)
            return
        self.progress, self.error = Progress.REFUSED, error
        self._stored.manifest.withdraw(writer.draft)
        self._stored.count_logged(self._logged_bytes)
        self._stored.end_checkpoint()
        self._ended(self)


class _ImageWriter:
    """Encodes the parts of an image, some at a time, in the committer's thread.

    Attributes:
        draft: the image as the manifest sees it.
        parts, size: how many parts are encoded, and how many bytes they have.
        finished: whether all parts are.
    """

    def __init__(self, session: TierSession, window: int, image: Image, draft: ImageDraft) -> None:
        self._session, self._window, self._image = session, window, image
        self.draft = draft
        self.parts = self.size = 0
        self.finished = False
        self._blocks: Ranges = []
        self._chunks = _chunks(self._encode())
        self._checksum = xxhash.xxh3_64()

    def next_parts(self) -> Callable[[], Mapping[bytes, bytes]]:
        """Return a function that makes the next parts. It may be called again: a commit is tried until it succeeds."""
        made: list[Mapping[bytes, bytes]] = []

        def puts() -> Mapping[bytes, bytes]:
            if not made:
                made.append(self._next_chunk())
            return made[0]

        return puts

    def stored_image(self, through: int) -> StoredImage:
        """Return the fields of the pointer to the image."""
        draft, checksum = self.draft, self._checksum.digest()
        numbers = draft.next_block, draft.staged, through
        return StoredImage(draft.version, self.parts, self.size, *numbers, self._blocks, checksum)

    def _next_chunk(self) -> Mapping[bytes, bytes]:
        chunk = next(self._chunks, None)
        if chunk is None:
            self.finished = True
            return {}
        self._session.tier.check_room(sum(map(len, chunk)), STORING)
        puts = {self._key(self.parts + i): part for i, part in enumerate(chunk)}
        for part in chunk:
            self._checksum.update(values.checksum(part))
        self.parts += len(chunk)
        self.size += sum(map(len, chunk))
        return puts

    def _encode(self) -> Iterator[bytes]:
        keys = [key for garbage in self.draft.listed for key in garbage]
        # A list of much garbage must not put off the next image, which has more to list.
        self.size -= sum(map(len, keys))
        store = self._session.id
        yield values.seal("head", {"ledger": self.draft.ledger.document(), "trash": keys}, self._key(0), store)
        yield from self._image.encode(lambda i: self._key(i + 1), store)
        self._blocks = ranges_of(self._image.stored())

    def _key(self, part: int) -> bytes:
        return values.image_key(self._window, self.draft.version, part)


def _chunks(parts: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Parts in lists of a few MiB."""
    chunk: list[bytes] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += len(part)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
