"""A scene for a whole file of attacks: they run one after another, in one zygote that must outlive them all."""

from collections.abc import Iterator

import pytest
from attack_scene import Scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("canary"))
    yield scene
    scene.close()
