"""What takes the members of a shard as a check finds them: profiles of readers, and the repair."""

from webdataset.tar.walker import MemberPosition


class MemberObserver:
    """Takes what a check finds in a shard, in order; the base takes nothing."""

    def take_piece(self, piece: bytes) -> None:
        """Take the next bytes of the tar stream.

        Args:
            piece: after decompression.
        """

    def take_links(self, targets: dict[int, str]) -> None:
        """Take the hard links among the members that come next.

        Args:
            targets: the name that each leads to, by the offset of the link.
        """

    def take_members(self, members: list[tuple[str, MemberPosition, int]]) -> None:
        """Take the next members, hard links included.

        Args:
            members: name, place and offset of the first header of each.
        """

    def wants_payload(self, place: MemberPosition) -> bool:  # noqa: ARG002  none
        """Tell whether a member's bytes are wanted.

        Args:
            place: of the member.
        """
        return False

    def take_payload(self, place: MemberPosition, payload: bytes) -> None:
        """Take the bytes of a member; it is given by ``take_members`` before or after.

        Args:
            place: of the member.
            payload: its bytes.
        """
