"""One thin method for each stage: ``dataset.shuffle(1000).decode("rgb")``.

Flows in: a pipeline. Flows out: a copy of it with one more stage. The stages are looked up in ``webdataset.filters``
when a method is called, so that replacing one there turns it here.
"""

from collections.abc import Callable
from typing import Any, Self

from webdataset import filters
from webdataset.ground.policies import Handler, reraise_exception

from . import ordering


class FluidInterface:
    """The chainable methods; mixed into pipelines (anything with ``compose``)."""

    trust: str | None = None

    def compose(self, *args: Any) -> Self:
        """Return a copy with more stages; pipelines provide it."""
        raise NotImplementedError

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = filters.default_collation_fn,
        partial: bool = True,  # noqa: FBT001, FBT002  upstream's signature
    ) -> Self:
        """Join consecutive samples into batches.

        Args:
            batchsize: samples in a batch.
            collation_fn: a list of samples to a batch; None leaves the list.
            partial: give the last batch even where it is smaller.
        """
        return self.compose(filters.batched(batchsize, collation_fn=collation_fn, partial=partial))

    def unbatched(self) -> Self:
        """Split batches into samples."""
        return self.compose(filters.unbatched())

    def listed(self, batchsize: int, partial: bool = True) -> Self:  # noqa: FBT001, FBT002  upstream's signature
        """Join consecutive samples into lists, without collating them.

        Args:
            batchsize: samples in a list.
            partial: give the last list even where it is shorter.
        """
        return self.compose(filters.listed(batchsize, partial=partial))

    def unlisted(self) -> Self:
        """Split lists into samples."""
        return self.compose(filters.unlisted())

    def log_keys(self, logfile: str | None = None) -> Self:
        """Append the key of each sample to a file.

        Args:
            logfile: its path; None logs nothing.
        """
        return self.compose(filters.log_keys(logfile))

    def shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle through a buffer.

        Args:
            size: samples in the buffer; below 1 leaves the order as it is.
            **kw: ``initial``, ``rng``, ``seed``, ``max_bytes``; see :func:`webdataset.filters.shuffle`.
        """
        return self if size < 1 else self.compose(filters.shuffle(size, **kw))

    def block_shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle blocks of consecutive samples, each by itself.

        Args:
            size: samples in a block.
            **kw: ``seed``; see :func:`webdataset.filters.block_shuffle`.
        """
        return self.compose(filters.block_shuffle(size, **kw))

    def map(
        self,
        f: Callable[..., Any],
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
    ) -> Self:
        """Apply a function to each sample; None drops the sample.

        Args:
            f: sample to sample; with ``rng``, sample and generator to sample.
            handler: asked where it raises.
            rng: give each sample a generator of its own, fixed by seed, epoch and sample: True or ``"python"``,
                ``"numpy"``, ``"seed"``; see :func:`webdataset.filters.map_with_rng`.
        """
        if rng is False:
            return self.compose(filters.map(f, handler=handler))
        salt = ordering.salt_of(self)
        result = self.compose(filters.map_with_rng(f, rng, handler, salt))
        ordering.number_draws(result)
        return result

    def decode(self, *args: Any, handler: Handler = reraise_exception, **kw: Any) -> Self:
        """Decode fields from bytes to values.

        Args:
            *args: image specifications (``"rgb"``, ``"pil"``, ``"torchrgb8"`` …) and decoders ``f(key, payload)``.
            handler: asked where a field cannot be decoded.
            **kw: ``pre``, ``post``, ``only``, ``partial``; see :func:`webdataset.filters.decode`.
        """
        kw.setdefault("trust", self.trust)
        return self.compose(filters.decode(*args, handler=handler, **kw))

    def map_dict(self, handler: Handler = reraise_exception, **kw: Callable[[Any], Any]) -> Self:
        """Apply a function to each named field, in place.

        Args:
            handler: asked where one raises.
            **kw: field to function.
        """
        return self.compose(filters.map_dict(handler=handler, **kw))

    def select(self, predicate: Callable[[Any], bool], **kw: Any) -> Self:
        """Keep the samples for which ``predicate`` is true.

        Args:
            predicate: sample to bool.
            **kw: see :func:`webdataset.filters.select`.
        """
        return self.compose(filters.select(predicate, **kw))

    def to_tuple(self, *args: Any, **kw: Any) -> Self:
        """Turn samples into tuples of fields.

        Args:
            *args: field names; ``"jpg;png"`` takes the first that is there.
            **kw: ``handler``, ``missing_is_error``, ``none_is_error``; see :func:`webdataset.filters.to_tuple`.
        """
        return self.compose(filters.to_tuple(*args, **kw))

    def map_tuple(self, *args: Any, handler: Handler = reraise_exception) -> Self:
        """Apply a function to each element of a tuple; None leaves the element.

        Args:
            *args: one function an element.
            handler: asked where one raises.
        """
        return self.compose(filters.map_tuple(*args, handler=handler))

    def slice(self, *args: int | None) -> Self:
        """Keep a slice of the samples, as ``itertools.islice`` does.

        Args:
            *args: stop, or start and stop, or start, stop and step.
        """
        return self.compose(filters.slice(*args))

    def rename(self, **kw: Any) -> Self:
        """Rename fields.

        Args:
            **kw: new name to old name (``"jpg;png"`` takes the first that is there); ``keep``, ``handler``.
        """
        return self.compose(filters.rename(**kw))

    def rsample(self, p: float = 0.5) -> Self:
        """Keep each sample with a probability.

        Args:
            p: the probability, in [0, 1].
        """
        return self.compose(filters.rsample(p))

    def rename_keys(self, *args: Any, **kw: Any) -> Self:
        """Rename fields by pattern; see :func:`webdataset.filters.rename_keys`."""
        return self.compose(filters.rename_keys(*args, **kw))

    def extract_keys(self, *args: Any, **kw: Any) -> Self:
        """Turn samples into tuples of fields chosen by pattern; see :func:`webdataset.filters.extract_keys`."""
        return self.compose(filters.extract_keys(*args, **kw))

    def xdecode(self, *args: Any, **kw: Any) -> Self:
        """Decode fields by pattern; see :func:`webdataset.filters.xdecode`."""
        return self.compose(filters.xdecode(*args, **kw))

    def interleaved(self, layout: str = "auto", **kw: Any) -> Self:
        """Put interleaved documents together, in whatever layout they are stored.

        Images are decoded by the ``decode`` before, the ``decode`` behind, or ``decode=``.

        Args:
            layout: ``auto``, ``siblings``, ``inline``, ``fields`` or ``pages``.
            **kw: ``decode``, ``others``, ``missing_image``, …; see :func:`webdataset.filters.interleaved`.
        """
        kw.setdefault("trust", self.trust)
        return self.compose(filters.interleaved_behind(getattr(self, "pipeline", ()), layout, **kw))

    def sibling_fields(self, **kw: Any) -> Self:
        """Make members ``D-<name>.jpg`` fields of the sample ``D``; see :func:`webdataset.filters.sibling_fields`."""
        return self.compose(filters.sibling_fields(**kw))

    def to_dict(self, *args: Any, **kw: Any) -> Self:
        """Keep the fields whose names end in one of some suffixes; see :func:`webdataset.filters.to_dict`."""
        return self.compose(filters.to_dict(*args, **kw))

    def mcached(self) -> Self:
        """Keep all samples in memory after the first complete pass."""
        return self.compose(filters.Cached())

    def lmdb_cached(self, *args: Any, **kw: Any) -> Self:
        """Keep all samples in an LMDB file after the first complete pass; see ``webdataset.filters.LMDBCached``."""
        return self.compose(filters.LMDBCached(*args, **kw))
