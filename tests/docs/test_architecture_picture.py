"""The picture of the rooms is the one that their imports give."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.docs.architecture import HOLDS, PICTURE, picture
from tests.test_architecture import MAY_IMPORT


def test_the_picture_is_drawn_from_the_imports_and_has_every_room() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert text == "\n".join(picture()), "run: make docs"
    assert HOLDS.keys() == MAY_IMPORT.keys() - {"app", "pipeline"}
    assert {"operations", "core"} < {one.text for one in ElementTree.fromstring(text).iter() if one.text}
