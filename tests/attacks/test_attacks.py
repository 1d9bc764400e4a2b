"""Programs that try to escape, to hurt others, or never to end: as a script and as tool code, beside a neighbour."""

import pytest
from attack_messages import LIES, MALFORMED_MESSAGES
from attack_programs import ENDS, FINDS_NOTHING, REFUSED


def named(attacks):
    return pytest.mark.parametrize("attack", attacks, ids=lambda attack: attack.name)


@named(REFUSED)
@pytest.mark.fault("B017")
@pytest.mark.fault("B027")
async def test_what_is_refused(scene, attack):
    """openai/codex#4337: a grandchild in a session of its own outlived the timeout. HackSoftware/HackGrader PR#33: a
    fork bomb took the server down."""
    assert (await scene.run(attack)).problems == []


@named(FINDS_NOTHING)
@pytest.mark.fault("B015")
async def test_what_is_not_there_to_be_found(scene, attack):
    """huggingface/smolagents#2094: walks from a value to the objects of the process that runs the code."""
    assert (await scene.run(attack)).problems == []


@named(ENDS)
@pytest.mark.fault("B014")
@pytest.mark.fault("B018")
@pytest.mark.fault("B021")
@pytest.mark.fault("B022")
@pytest.mark.fault("B023")
@pytest.mark.fault("B024")
@pytest.mark.fault("B027")
async def test_how_it_ends(scene, attack):
    """huggingface/smolagents#2473: one big-integer power held all threads. mito-ds/mito#1527: waits for input.
    cuga-project/cuga-agent#629: exit() ended the host. LiveCodeBench PR#103, PR#56: memory bombs, deep recursion,
    segmentation faults. verl-project/verl PR#7267: a child that ignored SIGTERM. pushkar8723/aurora#11: fork bombs."""
    assert (await scene.run(attack)).problems == []


@named(MALFORMED_MESSAGES)
async def test_malformed_messages_end_the_script(scene, attack):
    assert (await scene.run(attack)).problems == []


@named(LIES)
async def test_lies_on_the_line_change_nothing(scene, attack):
    assert (await scene.run(attack)).problems == []
